import { judgeAgents, listDataset, rubric } from '../../backends/environments/kit.ts';
import type { ChatMessage, Environment, Turn } from '../../backends/environments/kit.ts';

/**
 * Two agents say a word in turn, twice each; the one with more letters wins a point from the other. Both are the
 * policy.
 */
export function loadEnvironment(): Environment {
  const rows = ['cat', 'dog', 'sun', 'map', 'pen', 'owl', 'ink', 'jar'].map((word) => ({ prompt: word, answer: word }));
  const agents = ['first', 'second'];
  return {
    name: 'duel',
    dataset: listDataset(rows),
    evalDataset: listDataset(rows.slice(0, 2)),
    rubric: rubric([]),
    isDeterministic: true,
    async rollout(example, policy) {
      const turns: Turn[] = [];
      const heard = agents.map((_, trace): ChatMessage[] => [
        { role: 'user', content: trace === 0 ? example.answer : example.answer.split('').toReversed().join('') },
      ]);
      for (let round = 0; round < 2; round++) {
        for (const trace of agents.keys()) {
          const turn = await policy.sample(heard[trace]!);
          const said = { role: 'assistant' as const, content: turn.text };
          heard[trace] = [...heard[trace]!, said, { role: 'user', content: 'go' }];
          turns.push({ ...turn, trace });
        }
      }
      const letters = agents.map((_, at) =>
        turns.reduce((sum, { text, trace }) => sum + (trace === at ? text.length : 0), 0),
      );
      const won = Math.sign(letters[0]! - letters[1]!);
      return {
        turns,
        outcome: 'ok',
        judged: judgeAgents(
          agents.map((agent, trace) => ({
            agent,
            isTrained: true,
            reward: trace === 0 ? won : -won,
            metrics: { letters: letters[trace]! },
          })),
        ),
      };
    },
  };
}
