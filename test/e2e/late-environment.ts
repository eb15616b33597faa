import { listDataset, multiTurn, rubric } from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/kit.ts';

/** Of a turn: what the fake inference says differs by its letters. */
export function worthOf(text: string): number {
  return (text.split('').reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % 7) / 7;
}

/** Words are said in two turns. Whoever is asked for the second turn of a hard word waits for good. */
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
