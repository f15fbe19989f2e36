"""`ingot completion`: what a shell completes on its command line.

The script of each shell hands the words of its line back to this verb, so that the parser alone
says what can follow.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from ingot.cli.arguments import Argument, Arguments, verb_joined
from ingot.cli.output import print_json

# Where nothing is found, each completes paths.
SCRIPTS = {
    "bash": """\
# For ~/.bashrc: eval "$(ingot completion bash)"
_ingot() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _ingot ingot
""",
    "zsh": """\
# For ~/.zshrc, after compinit: eval "$(ingot completion zsh)"
_ingot() {
    local found="$($words[1] completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)"
    if [[ -n $found ]]; then compadd -- ${(f)found}; else _files; fi
}
compdef _ingot ingot
""",
    "fish": """\
# For ~/.config/fish/config.fish: ingot completion fish | source
function __ingot
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l found ($words[1] completion fish -- $words[2..-1] "$word" 2>/dev/null)
    if test -n "$found"
        printf '%s\\n' $found
    else
        __fish_complete_path "$word"
    end
end
complete -c ingot -f -a '(__ingot)'
""",
}

ARGUMENTS: Arguments = (
    Argument("shell SHELL", ", ".join(SCRIPTS), choices=tuple(SCRIPTS)),
    Argument("words WORD", "a word of a line, after --; the script gives them", nargs="*"),
)


def main(args: argparse.Namespace) -> int:
    """Prints a script that completes verbs, options, their values and paths in a shell. Its first
    line says where it belongs. With the words of a line it prints what can become of the last
    one; that is what the script asks for."""
    if not args.words:
        script = SCRIPTS[args.shell]
        print_json({"script": script}) if args.json else print(script, end="")
        return 0
    from ingot.cli.parser import build_parser

    found = candidates(build_parser(args.words), args.words)
    print_json(found) if args.json else print("\n".join(found))
    return 0


def candidates(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Completes the last word of a line; nothing if it can be any text or path.

    `words` come after `ingot`. bash makes `=` a word of its own.
    """
    verbs = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices
    line = [each for each in words if each != "="] + [""] * (words[-1] == "=")
    *before, word = [*verb_joined(line[:-1], verbs), line[-1]]
    verb = next((each for each in before if not each.startswith("-")), None)
    if verb is None:
        return _starting(word, (*verbs, *parser._option_string_actions))
    # `bench` takes a model, or goes on to `bench serve`; `golden` goes on to `golden record`.
    further = [name.removeprefix(f"{verb} ") for name in verbs if name.startswith(f"{verb} ")]
    if verb not in verbs or "--" in before:
        return _starting(word, further if before == [verb] else ())
    options = verbs[verb]._option_string_actions
    option, equals, _ = word.partition("=")
    if equals:
        return _starting(word, (f"{option}={value}" for value in _values(options.get(option))))
    if before[-1] in options and options[before[-1]].nargs != 0:
        return _starting(word, _values(options[before[-1]]))
    if word.startswith("-"):
        return _starting(word, options)
    if before[-1] == verb and further:
        return _starting(word, further)
    positionals = (a for a in verbs[verb]._actions if not a.option_strings)
    return _starting(word, (value for each in positionals for value in _values(each)))


def _values(action: argparse.Action | None) -> Iterable[str]:
    """The values of an argument that takes only some."""
    return (action and action.choices) or ()


def _starting(word: str, found: Iterable[str]) -> list[str]:
    return [each for each in found if each.startswith(word)]
