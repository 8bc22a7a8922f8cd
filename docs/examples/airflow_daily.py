"""Filters the documents of a day every night: shards as mapped tasks, then a selection whose summary goes to XCom.

Needs Airflow 3 and a pipeline that declares the parameter `date`.
"""

import json
import os
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import dag, task

PIPELINE = os.environ.get("LONGSIFT_PIPELINE", "/srv/pipelines/web.yaml")
SHARDS = 3
RUN = f"longsift run {PIPELINE} --param date={{{{ ds }}}} --run-id web-{{{{ ds_nodash }}}} --log-format json"


@dag(
    dag_id="longsift_daily",
    schedule="@daily",
    start_date=datetime(2026, 11, 1),
    catchup=False,
    # A retry runs the same command, which resumes.
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
)
def longsift_daily() -> None:
    """Scores in shards, selects once, and passes the summary on."""
    score = BashOperator.partial(
        task_id="score",
        bash_command=f"{RUN} --phase score --shard $SHARD/{SHARDS}",
        append_env=True,
        output_processor=json.loads,
    ).expand(env=[{"SHARD": str(shard)} for shard in range(SHARDS)])

    select = BashOperator(
        task_id="select",
        bash_command=f"{RUN} --phase select --nothing-to-do-exit 99",
        skip_on_exit_code=99,
        append_env=True,
        # The summary is the last line of the output, standard error included.
        output_processor=json.loads,
    )

    @task
    def report(summary: dict[str, Any]) -> str:
        """Placeholder for the next task."""
        line = f"{summary['run_id']}: {summary['kept']} samples of {summary['rows_in']} rows in {summary['run_dir']}"
        print(line)
        return line

    score >> select
    report(select.output)


longsift_daily()
