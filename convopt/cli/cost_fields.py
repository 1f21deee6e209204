"""The fields of `convopt explain --cost --json`, one convolution's; without heavy imports, for the help."""

COST_FIELDS = {
    "conv": "kernel, stride, groups x channels -> output channels, @ extents of the output",
    "count": "how often it occurs",
    "seconds": "predicted",
    "source": "estimate, or record: measured before",
    "chosen{}": "algorithm, and each field of its configuration (tiles, split_k, swizzle, stages, pad, ...)",
    "chosen{}[]": "entries of a field that has several: swizzle, pad, down",
    "parts{}": "what the prediction is made of: seconds, counts and ratios (see README)",
    "bound": "what its loop waits for: compute, issue, shared, l2 or memory",
    "roofline_s": "seconds at the declared peak or bandwidth; a CPU's: by `convopt calibrate`, else null",
    "rule.chosen{}": "what the five-step rule picks",
    "rule.chosen{}[]": "entries of a field that has several",
    "rule.seconds": "the same model's prediction for that; null where the model can't price it",
    "rule.steps[].number": "1 to 5",
    "rule.steps[].title": "what the step looks at",
    "rule.steps[].kept": "configurations left",
    "rule.steps[].dropped{}": "reason, with the first one's figures: how many it dropped",
    "rule.refused": "why the rule has no choice, else null",
}
