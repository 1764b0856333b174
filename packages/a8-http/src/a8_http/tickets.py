"""Forty support tickets with the queue each belongs in: what the demo teaches and contracts/a8 pins."""

CRITERION = "Which queue does the ticket belong in?"
FORMAT = {"properties": {"queue": {"enum": ["billing", "shipping", "account"]}}}

TICKETS: dict[str, tuple[str, ...]] = {
    "billing": (
        "I was charged twice for the same order.",
        "My invoice shows the wrong amount.",
        "Please refund the payment you took last week.",
        "Why is there an extra fee on my bill?",
        "My card was declined although it has enough money.",
        "The discount code did not lower the price I paid.",
        "I need a receipt for the payment in March.",
        "You billed me for a plan that I cancelled.",
        "The tax on my invoice is calculated wrongly.",
        "I want my money back for the duplicate charge.",
        "The direct debit came out of my bank account twice.",
        "Can I pay the outstanding invoice in instalments?",
        "The price on the invoice is higher than the one on the page.",
        "My refund still has not reached my bank account.",
    ),
    "shipping": (
        "My parcel has not arrived yet.",
        "The package was delivered to the wrong address.",
        "The tracking number does not show any movement.",
        "The courier left the box in the rain.",
        "When will my order be delivered?",
        "The parcel arrived with a crushed corner.",
        "The delivery driver never rang the bell.",
        "My package is stuck in customs.",
        "Only one of the two boxes was delivered.",
        "Can you send the parcel to another address?",
        "The shipment left the warehouse a week ago and is lost.",
        "The courier says that the parcel was returned to you.",
        "I want to change the delivery date of my package.",
    ),
    "account": (
        "I cannot log in to my account.",
        "I forgot my password and the reset mail never comes.",
        "Please change the email address of my profile.",
        "My account was locked after three attempts.",
        "How do I turn on two-factor authentication?",
        "Somebody else signed in with my user name.",
        "I want to delete my account and my data.",
        "The login page says that my user name does not exist.",
        "How can I change my password?",
        "My profile shows the wrong name.",
        "The verification code for signing in does not arrive.",
        "I would like to merge my two user accounts.",
        "The app logs me out every few minutes.",
    ),
}


def request(ticket: str) -> list[dict[str, str]]:
    """The messages that ask for the queue of a ticket."""
    return [{"role": "system", "content": CRITERION}, {"role": "user", "content": ticket}]


def teachings() -> list[dict[str, object]]:
    """Arguments of the forty `teach` calls, the queues taking turns."""
    rows = [
        (place, {"input": request(ticket), "format": FORMAT, "answer": {"queue": queue}})
        for queue, texts in TICKETS.items()
        for place, ticket in enumerate(texts)
    ]
    return [arguments for _, arguments in sorted(rows, key=lambda row: row[0])]
