"""Curves for TensorBoard in `RUN/tensorboard`, written without torch."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quatrain.errors import SettingError
from quatrain.telemetry.files import disk_errors
from quatrain.telemetry.tracker import TRACKERS


@TRACKERS.register("tensorboard")
class TensorBoard:
    """Scalars of a run; on resume, TensorBoard is told to forget the steps from `first_step` on."""

    def __init__(self, folder: Path, first_step: int = 1) -> None:
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            raise SettingError("log.tensorboard", True, "the package tensorboard",
                               "pip install tensorboard, or set log.tensorboard=false") from None  # fmt: skip
        self._event: Any = event_pb2
        self._summary: Any = summary_pb2
        self._path = Path(folder) / "tensorboard" / f"events.out.tfevents.{time.time_ns()}"  # read in order of names
        with disk_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer: Any = RecordWriter(self._path.open("xb"))
        self._add(0, file_version="brain.Event:2")
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(first_step, session_log=start)  # also before step 1, which a run that was killed may have logged

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """One point per name at `step`."""
        points = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=self._summary.Summary(value=points))

    def close(self) -> None:
        """Close the event file."""
        with disk_errors(self._path):
            self._writer.close()

    def _add(self, step: int, **content: Any) -> None:
        event = self._event.Event(wall_time=time.time(), step=step, **content)
        with disk_errors(self._path):
            self._writer.write(event.SerializeToString())
            self._writer.flush()
