"""What spans and their attributes are called: one place to follow the conventions when they move.

Of model calls: OpenTelemetry's semantic conventions for generative AI, client spans, as of schema 1.37 (2025-09).
"""

from __future__ import annotations

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"

OPERATION = "gen_ai.operation.name"
CHAT = "chat"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
"""Those from a cache included, as the conventions have it."""
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
ERROR_TYPE = "error.type"
OTHER_ERROR = "_OTHER"

RUN = "nki_optimizer.run"
ROUND = "nki_optimizer.round"
STEP = "nki_optimizer.step"
ATTEMPT = "nki_optimizer.attempt"
"""An event of a round's span."""

RUN_ID = "nki_optimizer.run.id"
TASK = "nki_optimizer.task"
SHAPE = "nki_optimizer.shape"
TARGET = "nki_optimizer.target.machine"
SIMULATED = "nki_optimizer.target.simulated"
PROPOSER = "nki_optimizer.proposer"
ENDING = "nki_optimizer.run.ending"
BASELINE_US = "nki_optimizer.baseline.latency_us"
BEST_US = "nki_optimizer.best.latency_us"
NUMBER = "nki_optimizer.round.number"
PARENT_ID = "nki_optimizer.round.parent_id"
STEP_NAME = "nki_optimizer.step.name"
LANE = "nki_optimizer.lane"
CANDIDATE = "nki_optimizer.attempt.id"
TECHNIQUE = "nki_optimizer.attempt.technique"
OUTCOME = "nki_optimizer.attempt.outcome"
LATENCY_US = "nki_optimizer.attempt.latency_us"
ROLE = "nki_optimizer.model.role"
