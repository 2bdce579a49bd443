"""What a committed token becomes: history, text, a delta, or the end of its sequence."""

from ..errors import DrawloomError, EngineError
from .request import Delta, FinishReason, Result, TopLogprobs
from .sampler import Sampled
from .sequence import Sequence

__all__ = ["Ending", "add_token", "emit", "emit_end", "ending"]

Ending = tuple[FinishReason, str | int | None]


def add_token(sequence: Sequence, sampled: Sampled) -> DrawloomError | None:
    """Append a token to every history of the sequence: tokens, matcher, log-probabilities and text."""
    token_id = sampled.token_id
    try:
        if sequence.matcher is not None and not sequence.matcher.accept(token_id):
            return EngineError(f"the grammar refused token {token_id}, which its own mask allowed")
    except DrawloomError as error:
        return error
    sequence.tokens.append(token_id)
    if sequence.request.sampling.logprobs:
        sequence.logprobs.append(sampled.logprob)
    if sampled.top_logprobs is not None:
        sequence.top_logprobs.append(sampled.top_logprobs)
    sequence.pending_ids.append(token_id)
    if not _is_stop_id(sequence, token_id):
        sequence.write(sequence.detokenizer.push([token_id]))
    return None


def ending(sequence: Sequence) -> Ending | None:
    """Whether the token added last ends the sequence, and why."""
    token_id, sampling = sequence.tokens[-1], sequence.request.sampling
    if _is_stop_id(sequence, token_id):
        return "stop", token_id
    if sequence.stop_hit is not None:
        return "stop", sequence.stop_hit
    if sequence.matcher is not None and sequence.matcher.is_terminated:
        return "stop", None
    if sequence.num_output >= sampling.max_tokens or len(sequence.tokens) >= sequence.max_len:
        # Only what could have gone on was cut: `true` is whole, 12 may be the beginning of 120.
        whole = sequence.matcher is not None and sequence.matcher.must_terminate
        return ("stop" if whole else "length"), None
    return None


def emit(sequence: Sequence) -> None:
    """Send what has been added since the last delta."""
    text, token_ids = sequence.take_pending()
    sequence.send(Delta(text, token_ids))


def emit_end(sequence: Sequence, ended: Ending, fingerprint: str) -> None:
    """Send the last delta with the whole result. Text that was held back for a stop string is released."""
    if sequence.stop_hit is None:
        sequence.write(sequence.detokenizer.finish())
        sequence.write_held()
    text, token_ids = sequence.take_pending()
    reason, stop_reason = ended
    result = Result(
        text="".join(sequence.text),
        token_ids=sequence.output_ids if sequence.generates else sequence.tokens[sequence.request.score_from :],
        logprobs=_logprobs(sequence),
        finish_reason=reason,
        stop_reason=stop_reason,
        seed=sequence.request.seed,
        fingerprint=fingerprint,
        prompt_tokens=sequence.num_prompt,
        cached_tokens=sequence.cached_tokens or 0,
        top_logprobs=_top_logprobs(sequence),
        prompt_logprobs=_prompt_logprobs(sequence),
        prompt_top_logprobs=_prompt_top_logprobs(sequence),
    )
    sequence.send(Delta(text, token_ids, reason, result))


def _is_stop_id(sequence: Sequence, token_id: int) -> bool:
    sampling = sequence.request.sampling
    if token_id in sampling.stop_token_ids:
        return True
    # Under a constraint the grammar decides where the text may end, so ignore_eos has no say.
    return token_id in sequence.eos_ids and (not sampling.ignore_eos or sequence.matcher is not None)


def _logprobs(sequence: Sequence) -> list[float]:
    first = sequence.request.score_from
    if first is None:
        return sequence.logprobs
    positions = range(first, sequence.num_prompt)
    return [sequence.prompt_logprobs[position][0] for position in positions if position in sequence.prompt_logprobs]


def _top_logprobs(sequence: Sequence) -> list[TopLogprobs] | None:
    return sequence.top_logprobs if sequence.request.sampling.top_logprobs else None


def _prompt_logprobs(sequence: Sequence) -> list[float | None] | None:
    if not sequence.request.sampling.prompt_logprobs:
        return None
    found = (sequence.prompt_logprobs.get(position) for position in range(sequence.num_prompt))
    return [None if entry is None else entry[0] for entry in found]


def _prompt_top_logprobs(sequence: Sequence) -> list[TopLogprobs | None] | None:
    if not sequence.request.sampling.prompt_logprobs or not sequence.request.sampling.top_logprobs:
        return None
    found = (sequence.prompt_logprobs.get(position) for position in range(sequence.num_prompt))
    return [None if entry is None else entry[1] for entry in found]
