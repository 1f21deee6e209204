"""ATen graphs (torch.fx, as AOTAutograd and torch.export make them) as ONNX models. Imports torch."""
