"""Replay: whether the compiler still writes what it wrote.

A change that only moves or renames parts of the compiler must leave the generated LLVM
text as it was, byte for byte. This program keeps a digest of that text for many
programs, as it is before LLVM sees it, so nothing is compiled:

    golden/   the small programs whose kernels are kept as text
    bench/    what tapejit runs in each benchmark
    op/       each row of the op table that is native code, in all dtypes; `/adjoint`
              is the same row with its gradients
    random/   the first seeds of the random programs

Digests are kept in `digests.json`, for two levels of processors and two threads.

    python -m tests.replay compare            what differs from digests.json
    python -m tests.replay accept             keep what is written now, and name it
    python -m tests.replay commits A B        what differs between two commits
    python -m tests.replay record --out FILE  digests of what is written now

`--only PATTERN` takes the programs whose names match. With `--bits` programs are run,
and the digests are of their results: for changes of the text that must change no
number.

The data structures are a `Program`, which has Graphs and can be run, and a `Record`,
the digests with what they depend on. All that is known of the compiler's inside is in
`compiler`.

Start reading at `programs.Program`, then `record.record_of`.
"""
