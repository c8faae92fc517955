"""
OpenLineage events of a run: which store it read, which tables of which lake it wrote, how much, and how it ended.

The client is OpenLineage's own, an extra of the package; where events go to, its own settings say (OPENLINEAGE_URL,
`openlineage.yml`). An event that cannot be sent is said, and no reason for a run to fail.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

from jobs import __version__
from jobs.console.log import say
from jobs.ingest.request import IngestRequest, Summary
from jobs.launch.errors import SetupError
from jobs.storage.locations import is_local, join, local_path, normalise

if TYPE_CHECKING:
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.generated.base import RunFacet

_PRODUCER = f"https://pypi.org/project/rocketmq-lake/{__version__}"
_NAMESPACE = "OPENLINEAGE_NAMESPACE"
_MISSING = "--lineage needs OpenLineage's client: pip install openlineage-python (the extra `lineage` of the wheel)"


class Lineage:
    """Sends the events of one run."""

    def __init__(self, request: IngestRequest) -> None:
        """Prepare a run of *request*; `SetupError` where the client is not installed."""
        try:
            from openlineage.client import OpenLineageClient
        except ModuleNotFoundError as error:
            raise SetupError(_MISSING) from error
        self._client: OpenLineageClient = OpenLineageClient()
        self._request = request
        self._run = str(uuid4())

    @contextmanager
    def sent(self) -> Iterator[None]:
        """Send that the run has started, and what it fails with; what it has done, `completed` sends."""
        self._send("START", [])
        try:
            yield
        except KeyboardInterrupt:
            self._send("ABORT", [])
            raise
        except BaseException as error:
            from openlineage.client.facet_v2 import error_message_run

            failed = error_message_run.ErrorMessageRunFacet(message=str(error), programmingLanguage="python")
            self._send("FAIL", [], {"errorMessage": failed})
            raise

    def completed(self, summary: Summary | None) -> None:
        """Send what the run has done: the tables of its commits; None where another run was at work."""
        self._send("ABORT" if summary is None else "COMPLETE", [] if summary is None else list(_outputs(summary)))

    def _send(self, kind: str, outputs: "list[OutputDataset]", facets: "Mapping[str, RunFacet] | None" = None) -> None:
        from openlineage.client.event_v2 import InputDataset, Job, Run, RunEvent, RunState

        namespace = os.environ.get(_NAMESPACE) or "rocketmq-lake"
        event = RunEvent(
            eventType=RunState(kind),
            eventTime=datetime.now(UTC).isoformat(),
            run=Run(self._run, dict(facets or {})),
            job=Job(namespace, "ingest"),
            producer=_PRODUCER,
            inputs=[InputDataset(*_named(self._request.store))],
            outputs=outputs,
        )
        try:
            self._client.emit(event)
        except Exception as error:  # noqa: BLE001 - a transport may raise anything, and none of it is the run's
            say(f"rmq-lake: the {kind} event was not sent to OpenLineage: {error}")


def _outputs(summary: Summary) -> "Iterator[OutputDataset]":
    """Yield the tables that a run has committed to, with their versions and rows."""
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import (
        dataset_version_dataset,
        output_statistics_output_dataset,
        schema_dataset,
    )

    from jobs.lake.description import comment_of, sql_type
    from jobs.lake.tables import MESSAGES, TABLES, TIERED

    messages = MESSAGES if summary.tier_queues is None else TIERED
    rows = {messages.name: summary.messages, "quarantine": summary.quarantined, "index_entries": summary.index_entries}
    for table in TABLES:
        if table.name not in summary.versions:
            continue
        fields = [
            schema_dataset.SchemaDatasetFacetFields(field.name, sql_type(field.type), comment_of(field))
            for field in table.delta_schema.fields
        ]
        written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows.get(table.name))
        version = str(summary.versions[table.name])
        yield OutputDataset(
            *_named(join(summary.lake, table.name)),
            outputFacets={"outputStatistics": written} if table.name in rows else {},
            facets={
                "schema": schema_dataset.SchemaDatasetFacet(fields=fields),
                "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=version),
            },
        )


def _named(location: str) -> tuple[str, str]:
    """Return OpenLineage's namespace and name of a place."""
    if is_local(location):
        return "file", os.path.realpath(local_path(location))
    parts = urlsplit(normalise(location))
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    return f"{scheme}://{parts.netloc}", parts.path.strip("/")
