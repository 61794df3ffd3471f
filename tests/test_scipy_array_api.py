"""SciPy's array API mode: its functions compute with tensors, and tapes see it.

SciPy reads `SCIPY_ARRAY_API` when it is imported, so the calls run in one process of
their own, which prints a line per call. The gradient is compared with differences of
what SciPy gives for arrays.

Start reading at `CALLS`.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy
from elsewhere import run_interpreter

VERSION = tuple(map(int, scipy.__version__.split(".")[:2]))
pytestmark = pytest.mark.skipif(
    VERSION < (1, 17), reason="older SciPys support fewer functions in this mode"
)

# x and y are vectors [4], p and q are between 0 and 1, m is a matrix [3,2].
CALLS = """
special.betainc(2.0, 3.0, p)
special.chdtrc(2.0, p)
special.entr(p)
special.erf(x)
special.expit(x)
special.gammainc(2.0, p)
special.gammaln(p)
special.i0(x)
special.log_ndtr(x)
special.logit(p)
special.ndtr(x)
special.ndtri(p)
special.rel_entr(p, q)
special.softmax(x) ** 2
special.xlogy(p, q)
stats.chisquare(p, p + 0.1 * q - 0.1 * q[::-1]).statistic
stats.circmean(x)
stats.circvar(x)
stats.combine_pvalues(p).statistic
stats.directional_stats(m).mean_direction
stats.entropy(p)
stats.gmean(p)
stats.hmean(p)
stats.jarque_bera(x).statistic
stats.kstat(x, 2)
stats.kurtosis(x)
stats.moment(x, 3)
stats.pmean(p, 2)
stats.sem(x)
stats.skew(x)
stats.ttest_1samp(x, 0.0).statistic
integrate.cumulative_trapezoid(x)
integrate.trapezoid(x, p)
fft.rfft(x).real
fft.ifft(x).imag
signal.fftconvolve(x, y)
optimize.rosen(x)
transform.Rotation.from_rotvec(x[:3]).as_quat()
""".strip().splitlines()

PROGRAM = """
import json, re, sys, warnings
import numpy as np
import tapejit as tj
from scipy import fft, integrate, optimize, signal, special, stats
from scipy.spatial import transform

arrays = {
    "x": np.array([0.3, 1.2, -0.7, 2.0]),
    "y": np.array([1.1, -0.4, 0.8, 0.5]),
    "p": np.array([0.15, 0.2, 0.35, 0.4]),
    "q": np.array([0.3, 0.1, 0.4, 0.25]),
    "m": np.array([[1.0, 2.0], [3.0, 4.5], [0.5, 1.0]]),
}
warnings.simplefilter("ignore")  # of SciPy, about small samples

for call in json.loads(sys.argv[1]):
    used = {n: a for n, a in arrays.items() if re.search(rf"\\b{n}\\b", call)}
    tensors = {n: tj.asarray(a) for n, a in used.items()}
    wanted = np.asarray(eval(call, globals() | used))
    weight = np.random.default_rng(1).uniform(0.5, 1.5, wanted.shape)
    with tj.GradientTape() as tape:
        tape.watch(list(tensors.values()))
        found = eval(call, globals() | tensors)
        loss = tj.sum(found * weight)
    gradients = tape.gradient(loss, tensors)
    rng = np.random.default_rng(2)
    ways = {n: rng.standard_normal(a.shape) for n, a in used.items()}
    ends = []
    for step in (1e-5, -1e-5):
        moved = {n: a + step * ways[n] for n, a in used.items()}
        ends.append(float(np.sum(eval(call, globals() | moved) * weight)))
    slope = sum(float(np.sum(g.numpy() * ways[n])) for n, g in gradients.items())
    print(json.dumps({
        "call": call,
        "type": type(found).__name__,
        "found": np.asarray(found).ravel().tolist(),
        "wanted": wanted.ravel().tolist(),
        "slope": slope,
        "difference": (ends[0] - ends[1]) / 2e-5,
    }))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, object]]:
    done = run_interpreter("-c", PROGRAM, json.dumps(CALLS), SCIPY_ARRAY_API="1")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["call"]: line for line in lines}


@pytest.mark.parametrize("call", CALLS)
def test_scipy_computes_with_tensors_and_tapes_differentiate_it(
    results: dict[str, dict[str, object]], call: str
) -> None:
    line = results[call]
    assert line["type"] == "Tensor"
    np.testing.assert_allclose(line["found"], line["wanted"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(line["slope"], line["difference"], rtol=1e-6, atol=1e-9)
