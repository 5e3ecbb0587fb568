"""`klamm completion`: the shell completes commands, options, and the topics, groups and brokers of a live cluster.

The shell's function calls the hidden command `klamm complete`, which reads the line from the table of commands itself:
a new command or option is completed without further work. The cluster is the one that the line names.

typer's own completion is not used. It takes bash's words, which end at ":" and "=", and so loses the port of
--bootstrap-server and the value of --topic=orders. It also offers files where the cluster has nothing to offer.

What must stay true: completion prints only candidates, and waits for the cluster no longer than `LOOK_S`.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from klamm.access.clients import command_options
from klamm.cli.shared.options import DEFAULT_BOOTSTRAP
from klamm.cli.shared.output import print_line, print_lines

if TYPE_CHECKING:
    from klamm.client.cluster import ClusterClient

LOOK_S: Final = 1.0
# Tells the shell's function to complete the names of files.
FILES: Final = "<files>"
# Where bash breaks a word: a candidate must begin after the last of these.
_BASH_WORD_BREAKS: Final = ":=@"


class Shell(StrEnum):
    """The shells whose functions exist."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


class PlaceKind(Enum):
    """What may stand at a place of the line, besides fixed words."""

    WORDS = "words"
    TOPICS = "topics"
    GROUPS = "groups"
    BROKERS = "brokers"
    FILES = "files"


_KINDS: Final[Mapping[str, PlaceKind]] = {
    "--topic": PlaceKind.TOPICS,
    "--group": PlaceKind.GROUPS,
    "--broker": PlaceKind.BROKERS,
    "--broker-id": PlaceKind.BROKERS,
    "--broker-logger": PlaceKind.BROKERS,
    "--broker-list": PlaceKind.BROKERS,
}
# These options take a list with commas, of which the last element is completed.
_LISTS: Final = ("--broker-list", "--delete-config")
_ENTITY_KINDS: Final = {"topics": PlaceKind.TOPICS, "brokers": PlaceKind.BROKERS, "broker-loggers": PlaceKind.BROKERS}
_TOPIC_CONFIGS: Final = ("--config", "--add-config", "--delete-config")


@dataclass(frozen=True, slots=True)
class Place:
    """What may come at the end of a line: one of `words`, or a name of this kind from the cluster.

    `begun` is the word so far; `prefix` is the part of it that each candidate repeats. `given` holds the values of the
    options that the line has already, by name.
    """

    kind: PlaceKind
    begun: str
    words: tuple[str, ...] = ()
    prefix: str = ""
    given: Mapping[str, Sequence[str]] = field(default_factory=dict)


# -- the commands -------------------------------------------------------------------------------------------------


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell to print the function for.")],
) -> None:
    """Print the function that lets a shell complete klamm's commands, options, topics, groups and brokers.

    Put one of these lines into ~/.bashrc, into ~/.zshrc (after compinit), or run the last one once:

    eval "$(klamm completion bash)"

    eval "$(klamm completion zsh)"

    klamm completion fish > ~/.config/fish/completions/klamm.fish
    """
    print_lines(_SCRIPTS[shell].splitlines())


def complete(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument()],
    line: Annotated[str, typer.Argument(help="The line as far as the cursor.")],
) -> None:
    """Print the candidates for the end of a command line, one a line."""
    place = find_place(context.find_root().command, line)
    for candidate in candidates(place, look):
        print_line(_for_bash(candidate, place.begun) if shell is Shell.BASH and candidate != FILES else candidate)


def _for_bash(candidate: str, begun: str) -> str:
    """The part of a candidate after the last word break, which is what bash replaces; quoted if necessary."""
    begin = max(begun.rfind(each) for each in _BASH_WORD_BREAKS) + 1
    rest = candidate[begin:]
    return rest if rest.endswith("=") else shlex.quote(rest)


# -- the line -----------------------------------------------------------------------------------------------------


def find_place(root: Any, line: str) -> Place:
    """What may stand at the end of the line. `root` is the command with all others below it."""
    words, begun = _split(line)
    node, given, pending, arguments = root, dict[str, list[str]](), None, 0
    for word in words[1:]:
        if pending is not None:
            given.setdefault(pending.opts[0], []).append(word)
            pending = None
        elif word.startswith("-"):
            name, equals, value = word.partition("=")
            option = _option(node, name)
            if equals and option is not None:
                given.setdefault(option.opts[0], []).append(value)
            elif option is not None and not option.is_flag:
                pending = option
        elif hasattr(node, "commands"):
            if word not in node.commands:
                return Place(PlaceKind.WORDS, begun)
            node = node.commands[word]
        else:
            arguments += 1
    if pending is not None:
        return _value_place(pending, begun, "", given)
    name, equals, value = begun.partition("=")
    option = _option(node, name) if equals else None
    if option is not None:
        return _value_place(option, begun, f"{name}=", given)
    if begun.startswith("-"):
        return Place(PlaceKind.WORDS, begun, _options(node, given))
    if hasattr(node, "commands"):
        return Place(
            PlaceKind.WORDS, begun, tuple(name for name, command in node.commands.items() if not command.hidden)
        )
    places = [parameter for parameter in node.params if parameter.param_type_name == "argument"]
    if arguments < len(places) or (places and places[-1].nargs == -1):
        return _value_place(places[min(arguments, len(places) - 1)], begun, "", given)
    return Place(PlaceKind.WORDS, begun, _options(node, given))


def _split(line: str) -> tuple[list[str], str]:
    """The words before the cursor, and the word that the cursor is in. A quote may still be open.

    Fish ends the line with a newline.
    """
    line = line.rstrip("\n")
    for end in ("", '"', "'"):
        try:
            words = shlex.split(line + end)
        except ValueError:
            continue
        if not words or (not end and line[-1].isspace()):
            return words, ""
        return words[:-1], words[-1]
    return [], ""


def _option(node: Any, name: str) -> Any:
    return next((each for each in node.params if name in getattr(each, "opts", ())), None)


def _options(node: Any, given: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The long names of the options that may still be given."""
    return tuple(
        name
        for option in node.params
        if option.param_type_name == "option" and not option.hidden and (option.multiple or option.opts[0] not in given)
        for name in option.opts
        if name.startswith("--")
    )


def _value_place(parameter: Any, begun: str, prefix: str, given: Mapping[str, Sequence[str]]) -> Place:
    name = parameter.opts[0]
    if name in _LISTS:
        prefix = begun[: begun.rfind(",") + 1] or prefix
    kind, words = _KINDS.get(name, PlaceKind.WORDS), tuple[str, ...]()
    if choices := getattr(parameter.type, "choices", None):
        words = tuple(getattr(each, "value", each) for each in choices)
    elif name == "--entity-type":
        words = ("topics", "clients", "users", "brokers", "ips", "broker-loggers")
    elif name == "--entity-name":
        kind = _ENTITY_KINDS.get((given.get("--entity-type") or [""])[-1], PlaceKind.WORDS)
    elif name in _TOPIC_CONFIGS and ("--topic" in given or "topics" in given.get("--entity-type", ())):
        words = _topic_configs("" if name == "--delete-config" else "=")
    elif "Path" in type(parameter.type).__name__ or "FILE" in (parameter.metavar or ""):
        kind = PlaceKind.FILES
    return Place(kind, begun, words, prefix, given)


def _topic_configs(end: str) -> tuple[str, ...]:
    from klamm.config.topic import TOPIC_CONFIG_DEF

    return tuple(f"{key}{end}" for key in sorted(TOPIC_CONFIG_DEF.keys))


def candidates(place: Place, look: Callable[[Place], Sequence[str]]) -> list[str]:
    """The words that may stand at the place. `look` asks the cluster."""
    if place.kind is PlaceKind.FILES:
        return [FILES]
    words = place.words if place.kind is PlaceKind.WORDS else look(place)
    return [word for each in words if (word := place.prefix + each).startswith(place.begun)]


# -- the cluster --------------------------------------------------------------------------------------------------


def look(place: Place) -> Sequence[str]:
    """The names in the cluster of the line; empty if the cluster does not answer in time."""
    from klamm.client import threads

    config = _last(place, "--command-config")
    try:
        options = command_options(
            _last(place, "--bootstrap-server") or DEFAULT_BOOTSTRAP,
            None if config is None else Path(config),
            int(LOOK_S * 1000),
        )
        return threads.start(options, _LOOKS[place.kind]).result(LOOK_S)
    # An error message would appear in the middle of the line that the user is typing.
    except Exception:
        return ()


def _last(place: Place, option: str) -> str | None:
    given = place.given.get(option)
    return given[-1] if given else None


async def _topics(client: "ClusterClient") -> list[str]:
    return sorted((await client.refresh_metadata()).topics)


async def _groups(client: "ClusterClient") -> list[str]:
    from klamm.client.admin.groups import list_groups

    return [listing.group for listing in await list_groups(client)]


async def _brokers(client: "ClusterClient") -> list[str]:
    return [str(broker_id) for broker_id in sorted((await client.refresh_metadata(())).brokers)]


_LOOKS: Final = {PlaceKind.TOPICS: _topics, PlaceKind.GROUPS: _groups, PlaceKind.BROKERS: _brokers}

# -- the shells' functions ----------------------------------------------------------------------------------------

_BASH: Final = r"""_klamm() {
    local IFS=$'\n'
    COMPREPLY=($(klamm complete bash -- "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    if [[ ${COMPREPLY[0]} == '<files>' ]]; then
        COMPREPLY=()
        compopt -o default
    elif [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace
    fi
}
complete -F _klamm klamm"""

_ZSH: Final = r"""#compdef klamm
_klamm() {
    local -a found
    found=("${(@f)$(klamm complete zsh -- "${(j: :)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ ${found[1]} == '<files>' ]]; then
        _files
    elif [[ ${#found} -eq 1 && ${found[1]} == *= ]]; then
        compadd -S '' -- "${found[@]}"
    elif [[ -n ${found[1]} ]]; then
        compadd -- "${found[@]}"
    fi
}
compdef _klamm klamm"""

_FISH: Final = r"""function __klamm_complete
    set -l found (klamm complete fish -- (commandline -cp | string collect --no-trim-newlines) 2>/dev/null)
    if test "$found[1]" = '<files>'
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $found
    end
end
complete -c klamm -f -a '(__klamm_complete)'"""

_SCRIPTS: Final = {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}
