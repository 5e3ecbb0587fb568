"""`klamm log`: what brokers have written to their disks, read without a broker."""

import typer

from klamm.tools import log_merge

app = typer.Typer(
    help="Merge state-change logs, print the files of logs, and verify data directories.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("merge", epilog=log_merge.EXAMPLE)(log_merge.merge)
