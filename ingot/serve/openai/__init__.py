"""OpenAI's API as data: requests and answers, jobs made of the former, bytes made of the latter."""
