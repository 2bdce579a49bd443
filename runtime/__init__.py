"""Engine, scheduler, radix cache, KV pool, models and sampling: from prompt ids and a constraint to committed ids."""
