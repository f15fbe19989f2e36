"""The text that golden prompts are made of, and that every tokenizer must encode."""

TEXT = (
    "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: "
    "Rough winds do shake the darling buds of May, And summer's lease hath all too short a date; "
)
