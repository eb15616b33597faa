import { RatchetError } from '../../core/errors.ts';
import { meanReward } from '../../core/rl/rollout/agents.ts';
import type { AgentTrace, Judgement } from '../../core/rl/rollout/rollout.ts';
import { mean } from '../../core/rl/advice/series.ts';

/**
 * Builds `judged` of a rollout with several agents: the mean reward of the trained ones, and all scores by name, each
 * after its agent's. `trace` of a turn is the index of its agent. At least one is trained.
 */
export function judgeAgents(traces: readonly AgentTrace[]): Judgement {
  const trained = traces.filter(({ isTrained }) => isTrained);
  if (trained.length === 0) {
    const agents = traces.map(({ agent }) => agent).join(', ');
    throw new RatchetError('Unsupported', `Expected one agent at least with isTrained: true; received ${agents}.`);
  }
  const scores = new Map<string, number[]>();
  for (const { agent, reward, metrics } of trained) {
    for (const [name, value] of Object.entries({ reward, ...metrics })) {
      const at = `${agent}/${name}`;
      scores.set(at, [...(scores.get(at) ?? []), value]);
    }
  }
  return {
    reward: meanReward(trained),
    metrics: Object.fromEntries([...scores].map(([name, values]) => [name, mean(values)])),
    traces,
  };
}
