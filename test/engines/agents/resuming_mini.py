import json
from minisweagent.agents.interactive import InteractiveAgent


class ResumingAgent(InteractiveAgent):
    def step(self):
        path = self.config.output_path
        if self.n_calls == 0 and path.exists():
            saved = json.loads(path.read_text())
            self.messages = saved["messages"]
            self.n_calls = saved["info"]["model_stats"]["api_calls"]
        return super().step()
