"""`python -m glm_spark.standin`: the same program as `glm-spark-standin`."""

from __future__ import annotations

import sys

from glm_spark.standin import main

sys.exit(main())
