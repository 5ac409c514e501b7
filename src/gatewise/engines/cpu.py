"""placeholder while the native engine is being written"""

name = "cpu"


def unavailable():
    return "not built"


def supports():
    return {}


def forward(problem): ...
def gradients(problem): ...
def set_threads(n): ...
def get_threads(): ...
