"""What a user may spend: tokens an hour and cents a day, reserved before a call and settled by what it was.

OPENAI_API_KEY=... python examples/budgets.py
"""

from openai import OpenAI

from headgate import BudgetBook, BudgetExceeded
from headgate.http.httpx import client

CENT = 1_000_000  # money is whole numbers; here millionths of a cent
INPUT, OUTPUT = 25, 200  # the price of a token of the model, in such numbers

book = BudgetBook(
    {
        "free": {"max_tokens_per_hour": 400, "max_tokens_per_request": 300},
        "paid": {"max_tokens_per_hour": 200_000, "money": {86_400: 500 * CENT}},
    }
)
openai = OpenAI(http_client=client(), max_retries=0)


def ask(user: str, tier: str, question: str) -> str | None:
    longest = 100
    budget = book.for_user(user, tier=tier)
    most = len(question) // 3 + longest
    with budget.reserve(most, money=most * OUTPUT) as reservation:
        reply = openai.chat.completions.create(
            model="gpt-5-mini",
            messages=[{"role": "user", "content": question}],
            max_completion_tokens=longest,
        )
        usage = reply.usage
        if usage is not None:
            money = usage.prompt_tokens * INPUT + usage.completion_tokens * OUTPUT
            reservation.settle(usage.total_tokens, money=money)
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
