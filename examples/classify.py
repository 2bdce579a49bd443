"""Sort support tickets by weighing four answers against each other: no other text can come out."""

import math
import time
from pathlib import Path

import drawloom as dl

TICKETS = Path(__file__).parent / "data" / "tickets.txt"
DEPARTMENTS = ["billing", "technical", "shipping", "account"]
SAMPLES = """Ticket: I want to delete my user profile.
Department: account

Ticket: When will my order be delivered?
Department: shipping

Ticket: The website shows a blank page after I log in.
Department: technical

Ticket: You took the wrong amount from my credit card.
Department: billing
"""


@dl.function
def classify(s, ticket):
    s += f"{SAMPLES}\nTicket: {ticket}\nDepartment: " + dl.select("department", DEPARTMENTS) + "\n"


def main() -> None:
    rows = [line.split("\t") for line in TICKETS.read_text("utf-8").splitlines()]
    start = time.perf_counter()
    empty, *states = classify.run_batch([{"ticket": text} for text in ("N/A", *(ticket for _, ticket in rows))])
    seconds = time.perf_counter() - start

    # A small model leans towards some answers whatever the ticket: what it makes of an empty one is taken off.
    leaning = empty.get_meta_info("department")["scores"]
    num_right = 0
    for (expected, ticket), state in zip(rows, states, strict=True):
        scores = state.get_meta_info("department")["scores"]
        weights = {name: math.exp(score - leaning[name]) for name, score in scores.items()}
        found = max(weights, key=weights.__getitem__)
        num_right += found == expected
        remark = "" if found == expected else f"(should be {expected}) "
        print(f"{found:10} {weights[found] / sum(weights.values()):4.0%}  {remark}{ticket}")
    print(f"\n{num_right} of {len(rows)} as expected, in {seconds:.1f} s, the model's start included")
    print(f"Drawloom {dl.__version__} in {Path(dl.__file__).parent}")


if __name__ == "__main__":
    main()
