import {
  answeredCallsOf,
  callText,
  listDataset,
  rubric,
  tool,
  toolEnvironment,
  uniform,
  z,
} from '../backends/environments/kit.ts';
import type { Environment } from '../backends/environments/kit.ts';

const letters = 'abcdefgh';

/** Short words that a tool turns round, and the model says what it heard. A call that is nearly right has a part of the reward, so that groups differ early. */
export function loadEnvironment(): Environment {
  const words = Array.from({ length: 400 }, (_, i) =>
    Array.from({ length: 3 }, (_letter, at) => letters[Math.floor(uniform('word', i, at) * letters.length)]).join(''),
  );
  const rows = [...new Set(words)].map((word) => ({ prompt: word, answer: turned(word) }));
  return toolEnvironment({
    name: 'turn-round',
    dataset: listDataset(rows.slice(20)),
    evalDataset: listDataset(rows.slice(0, 20)),
    maxTurns: 2,
    tools: [
      tool({
        name: 'turn',
        description: 'Turns a word round.',
        parameters: z.strictObject({ word: z.string() }),
        run: ({ word }) => turned(word),
      }),
    ],
    rubric: rubric([
      { name: 'called', weight: 0.5, score: ({ turns }) => Number(answeredCallsOf(turns).length > 0) },
      {
        name: 'letters_right',
        weight: 0.5,
        score: ({ completion, example }) => {
          const right = example.answer.split('').filter((letter, i) => completion[i] === letter).length;
          return right / (example.answer.length + Math.abs(completion.length - example.answer.length) / 16);
        },
      },
    ]),
    demonstrate: ({ example, messages }) =>
      messages.at(-1)!.role === 'tool' ? example.answer : callText('turn', { word: turned(example.answer) }),
  });
}

function turned(word: string): string {
  return word.split('').reverse().join('');
}
