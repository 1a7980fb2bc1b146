from tests.agent.gpu.conftest import fake_node as fake_node
