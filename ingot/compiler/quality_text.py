"""Texts of several kinds, on which a compile measures what its number formats cost.

The play is Shakespeare's, Coriolanus; the others were written for this.
"""

from __future__ import annotations

TEXTS = {
    "a play": """\
MENENIUS:
There was a time when all the body's members
Rebell'd against the belly, thus accused it:
That only like a gulf it did remain
I' the midst o' the body, idle and unactive,
Still cupboarding the viand, never bearing
Like labour with the rest, where the other instruments
Did see and hear, devise, instruct, walk, feel,
And, mutually participate, did minister
Unto the appetite and affection common
Of the whole body. The belly answer'd--

First Citizen:
Well, sir, what answer made the belly?

MENENIUS:
Sir, I shall tell you. With a kind of smile,
Which ne'er came from the lungs, but even thus--
For, look you, I may make the belly smile
As well as speak--it tauntingly replied
To the discontented members, the mutinous parts
That envied his receipt; even so most fitly
As you malign our senators for that
They are not such as you.
""",
    "technical prose": """\
A cache keeps the results of work that is likely to be asked for again. It is useful only if a
result can be found in less time than it takes to make, and only as long as what was kept is still
right. Most of the design of a cache is therefore about its keys. A key must name everything that
the result depends on: the input, the version of the program, the options it was given, and
sometimes the machine it ran on. If something is missing from the key, the cache returns a wrong
answer, and it does so without any sign of trouble. If too much is in the key, nothing is ever
found, and the cache is a slow way of writing files.

The second question is what to throw away. A common rule is to drop what was not used for the
longest time, because programs tend to return to what they touched a moment ago. The rule fails for
a scan over more data than fits: each entry is dropped just before it would have been needed.

```python
def take(cache, key, make):
    value = cache.get(key)
    if value is None:
        value = make(key)
        cache[key] = value
    return value
```
""",
    "plain prose": """\
The bakery on the corner opened at five, and by half past the first loaves were in the window. Anna
had worked there since she left school. She liked the hour before the doors opened best, when the
street was dark and the ovens were the only light in the room. Her father had told her that nobody
gets rich by making bread, and he had been right, but she had never met anyone who was sorry to see
her come in with a basket on her arm.

On the first cold morning of the year a man she did not know was waiting outside. He wore a good
coat and no hat, and he was looking at the bread as if it were a painting. When she unlocked the
door he asked for two rolls, counted the coins twice, and ate the first one before he had reached
the street. "My grandmother made these," he said through the glass, and then he laughed, because
there was no reason to say it and nobody else to hear it.
""",
}
QUESTION = "Why is the sky blue during the day, and why does it turn red at sunset?"
ANSWER = """\
Sunlight looks white, but it is a mixture of all colours. When it passes through the air, it meets
molecules that are much smaller than its waves, and these scatter short waves far more strongly than
long ones. Blue light is scattered in every direction, so it reaches your eyes from the whole sky.

At sunset the light has to cross much more air before it reaches you. Most of the blue has been
scattered out of it on the way, and what is left is orange and red."""
CONVERSATION = (
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": ANSWER},
)
