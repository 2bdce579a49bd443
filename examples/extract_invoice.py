"""Read invoices out of e-mails. The model is small and may mistake a field, but each answer is a valid `Invoice`."""

import datetime
import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

import drawloom as dl

EMAILS = Path(__file__).parent / "data" / "emails"
QUESTION = "Who is the vendor? What are the invoice number, the date, and the total amount with its currency?"


class Invoice(BaseModel):
    vendor: str = Field(min_length=2, max_length=60)
    invoice_number: str = Field(min_length=2, max_length=20)
    date: datetime.date
    total: float = Field(ge=0)
    currency: Literal["USD", "EUR", "GBP"]


@dl.function
def extract(s, email):
    s += dl.system("You extract data from e-mails.")
    s += dl.user(f"{email}\n\n{QUESTION} Answer in JSON.")
    s += dl.assistant(
        "Here is the invoice in the e-mail as JSON:\n"
        + dl.gen("invoice", schema=Invoice, temperature=0, max_tokens=120)
    )


def main() -> None:
    files = sorted(EMAILS.glob("*.txt"))
    start = time.perf_counter()
    states = extract.run_batch([{"email": file.read_text("utf-8")} for file in files])
    seconds = time.perf_counter() - start

    for file, state in zip(files, states, strict=True):
        invoice = state["invoice"]
        print(f"\n{file.name}: {type(invoice).__name__}")
        for field, value in invoice:
            print(f"  {field:15} {value}")
    meta = [state.get_meta_info("invoice") for state in states]
    read, written = (sum(one[kind] for one in meta) for kind in ("prompt_tokens", "completion_tokens"))
    print(f"\n{len(files)} e-mails in {seconds:.1f} s, the model's start included:")
    print(f"{read} tokens read, {written} written, {written / seconds:.1f} written a second")
    print(f"Drawloom {dl.__version__} in {Path(dl.__file__).parent}")


if __name__ == "__main__":
    main()
