"""`heliograph completion`: a script that completes commands and options in a shell."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from typer.completion import get_completion_script

from heliograph.cli.terminal.printing import Json, show

#: zsh reads the file `_heliograph` at the first Tab, and calls what it read: otherwise that Tab would complete nothing.
AT_ONCE = """
if [[ $funcstack[1] == _heliograph ]]; then
  _heliograph_completion "$@"
fi"""


def command(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.")],
    json: Json = False,
) -> None:
    """Print a script that completes commands and options. It needs neither the database nor the API.

    The directories must exist (`mkdir -p`). bash needs the package bash-completion, and zsh, in ~/.zshrc and before
    `compinit`, the line `fpath=(~/.zfunc $fpath)`.

    \b
    Examples:
      heliograph completion bash > ~/.local/share/bash-completion/completions/heliograph
      heliograph completion zsh > ~/.zfunc/_heliograph
      heliograph completion fish > ~/.config/fish/completions/heliograph.fish
    """
    script = get_completion_script(prog_name="heliograph", complete_var="_HELIOGRAPH_COMPLETE", shell=shell)
    if shell == "zsh":
        script += AT_ONCE
    if json:
        show({"shell": shell, "script": script}, json)
    else:
        print(script)
