import { listDataset, multiTurn, rubric } from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/kit.ts';

/** Reward of a turn: the fake inference's answers differ by their letters. */
export function worthOf(text: string): number {
  return (text.split('').reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % 7) / 7;
}

/** Two turns of words. The second turn of a hard word never ends. */
export function loadEnvironment(): Environment {
  const rows = ['easy', 'hard', 'soft', 'mild'].map((word) => ({ prompt: word, answer: word }));
  const dataset = listDataset(rows);
  const words = multiTurn<null>({
    name: 'late',
    dataset,
    evalDataset: dataset,
    maxTurns: 2,
    setup: () => null,
    respond: () => ({ state: null, say: 'go on' }),
    rubric: rubric([
      { name: 'worth', weight: 1, score: ({ turns }) => turns.reduce((sum, { text }) => sum + worthOf(text), 0) },
    ]),
  });
  return {
    ...words,
    rollout(example, policy, place) {
      let turns = 0;
      const isHard = example.answer === 'hard' && place!.index < 3;
      const sample: typeof policy.sample = (messages, options) =>
        isHard && turns++ > 0 ? new Promise(() => undefined) : policy.sample(messages, options);
      return words.rollout(example, { sample }, place);
    },
  };
}
