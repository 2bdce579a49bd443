"""Models of the DeepSeek family; a grouped-query model loads as a special case of the same attention."""
