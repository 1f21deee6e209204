"""A float64 evaluator of ONNX models, written from the operator specification.

It is the source of expected values in the tests: numpy only, no runtime, no reference implementation of
anybody else inside. Floating-point tensors are widened to float64 on entry and stay there; integers and
booleans keep their type. Sizes are small, so the formulas are written as the specification has them.

    outputs = evaluate(model, {"x": x})        # a whole model, by name
    y = conv(x, w, b, strides=[2, 2])          # one operator: inputs by position, attributes by keyword
"""
