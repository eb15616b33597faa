import { listDataset, multiTurn, rubric } from '../../backends/environments/kit.ts';
import type { Environment } from '../../backends/environments/kit.ts';

/** A word is spelled letter by letter, one in each turn, and each turn is worth something by itself. */
export function loadEnvironment(): Environment {
  const words = ['cat', 'dog', 'sun', 'map', 'pen', 'owl', 'ink', 'jar'];
  const rows = words.map((word) => ({
    prompt: word,
    answer: word,
    info: { backwards: word.split('').reverse().join('') },
  }));
  return multiTurn<number>({
    name: 'spelling',
    dataset: listDataset(rows),
    evalDataset: listDataset(rows.slice(0, 2)),
    maxTurns: 3,
    setup: () => 0,
    respond: ({ state, example }) => {
      const next = example.answer[state + 1];
      return next === undefined ? { state: state + 1, end: 'ok' } : { state: state + 1, say: next };
    },
    rubric: rubric([
      // The model has learned nothing: what it says differs by its length.
      { name: 'short', weight: 1, score: ({ turns }) => turns.map(({ text }) => 1 / (1 + text.length)) },
      { name: 'last', weight: 0.1, score: ({ completion }) => completion.length },
    ]),
  });
}
