"""Answer many tickets at once, sampled; then one of them alone: it gives the same tokens, bit for bit."""

import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

import drawloom as dl

TICKETS = Path(__file__).parent / "data" / "tickets.txt"


class Answer(BaseModel):
    mood: Literal["angry", "calm", "worried"]
    reply: str = Field(min_length=10, max_length=80)


def main() -> None:
    tickets = [line.split("\t")[1] for line in TICKETS.read_text("utf-8").splitlines()]
    prompts = [f"Ticket: {ticket}\nMood of the writer, and a short polite reply, as JSON: " for ticket in tickets]
    answer = dl.JSONSchema(Answer)
    with dl.Engine() as engine:
        samplings = [dl.SamplingParams(temperature=0.7, seed=row, max_tokens=60) for row in range(len(prompts))]
        start = time.perf_counter()
        results = engine.generate(prompts, samplings, answer)
        seconds = time.perf_counter() - start
        alone = engine.generate(prompts[-1], samplings[-1], answer)

    for ticket, result in zip(tickets, results, strict=True):
        print(f"\n{ticket}\n  seed {result.seed}, {result.finish_reason}: {result.text}")
    same = alone.token_ids == results[-1].token_ids and alone.logprobs == results[-1].logprobs
    written = sum(len(result.token_ids) for result in results)
    print(f"\n{len(prompts)} tickets in {seconds:.1f} s, {written / seconds:.1f} tokens a second")
    print(f"the last one alone: {'the same bits' if same else 'OTHER BITS'}")


if __name__ == "__main__":
    main()
