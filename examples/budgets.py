"""What a user may spend: tokens an hour and dollars a day, reserved before a call and settled by what it was.

OPENAI_API_KEY=... python examples/budgets.py
"""

from openai import OpenAI

from headgate import BudgetBook, BudgetExceeded, Prices
from headgate.http.httpx import client

MODEL = "gpt-5-mini"
prices = Prices.shipped()  # list prices in dollars, as of prices.date

book = BudgetBook(
    {
        "free": ["400 tokens/hour", "300 tokens/request"],
        "paid": ["200_000 tokens/hour", "$5/day"],
    }
)
openai = OpenAI(http_client=client(), max_retries=0)


def ask(user: str, tier: str, question: str) -> str | None:
    most_in, most_out = len(question.encode()) + 50, 100  # a token is at least one byte
    budget = book.for_user(user, tier=tier)
    estimate = prices.cost(MODEL, input_tokens=most_in, output_tokens=most_out)
    with budget.reserve(most_in + most_out, money=estimate) as reservation:
        reply = openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": question}],
            max_completion_tokens=most_out,
        )
        usage = reply.usage
        if usage is not None:
            cost = prices.cost(MODEL, input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens)
            reservation.settle(usage.total_tokens, money=cost)
    return reply.choices[0].message.content


if __name__ == "__main__":
    for number in range(30):
        try:
            ask(
                "ann",
                "free",
                f"Question {number}: why is the sky blue at noon and red in the evening?",
            )
        except BudgetExceeded as refusal:
            print(f"after {number} calls: {refusal}")
            break
    print("ann has", book.for_user("ann").remaining_budget, "tokens left")
