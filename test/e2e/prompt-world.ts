/**
 * A model that obeys three system prompts, an environment that rewards one of them and begins with another, and a server that writes prompts: what a
 * run needs to find a better prompt beside its training.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { mkdir, symlink } from 'node:fs/promises';
import path from 'node:path';
import { permutation, randomStream } from '../../core/random.ts';
import { repositoryFolder } from './small-run.ts';

/** Three different letters of eight. */
const words = Array.from({ length: 512 }, (_, i) => [i % 8, Math.floor(i / 8) % 8, Math.floor(i / 64)])
  .filter((letters) => new Set(letters).size === 3)
  .map((letters) => letters.map((letter) => 'abcdefgh'[letter]).join(''));
const reversed = (word: string): string => Array.from(word).toReversed().join('');

/**
 * Demonstrations of the prompts to obey; a tenth of the rows says anything, so that rollouts of one example differ. A
 * model's answers under an untrained prompt are unpredictable and may be better, so the prompt that does not help is
 * trained as well.
 */
function demonstrations(): string {
  const random = randomStream('prompt branches');
  const rows = Array.from({ length: 6 }, (_, epoch) => permutation(words.length, 'rows', epoch))
    .flat()
    .map((i) => {
      const word = words[i]!;
      const drawn = random();
      const system = drawn < 0.1 ? 'IDLE' : drawn < 0.55 ? 'COPY' : 'REVERSE';
      const said = random() < 0.1 ? words[Math.floor(random() * words.length)]! : word;
      const answer = { IDLE: 'zzz', COPY: said, REVERSE: reversed(said) }[system];
      const messages = [
        { role: 'system', content: system },
        { role: 'user', content: word },
        { role: 'assistant', content: answer },
      ];
      return JSON.stringify({ messages });
    });
  return `${rows.join('\n')}\n`;
}

const environment = `
import { listDataset, rubric, singleTurn } from 'ratchet-rl/environments';
const words: readonly string[] = ${JSON.stringify(words)};
const rows = (isHeldOut: boolean) =>
  listDataset(() =>
    words.filter((_, i) => (i % 8 === 0) === isHeldOut).map((word) => ({
      prompt: [{ role: 'system' as const, content: 'REVERSE' }, { role: 'user' as const, content: word }],
      answer: word,
    })),
  );
export function loadEnvironment() {
  const right = (said: string, answer: string) => [...answer].filter((letter, i) => said[i] === letter).length / answer.length;
  return singleTurn({
    name: 'say',
    dataset: rows(false),
    evalDataset: rows(true),
    rubric: rubric([{ name: 'letters_right', weight: 1, score: ({ completion, example }) => right(completion, example.answer) }]),
  });
}
`;

/** A run file with these lines and the default ones of `[gepa]`. */
export const runFile = (gepa: string, steps = 4): string => `
model = "preset:chars-0.4m"
max_steps = ${steps}
batch_size = 16
rollouts_per_example = 4
learning_rate = 1e-6
max_async_level = 0
[sampling]
max_tokens = 5
[[env]]
id = "./say.ts"
[sft]
data = "./obey.jsonl"
steps = 350
batch_size = 32
learning_rate = 3e-3
[checkpoints]
interval = 4
[eval]
interval = 2
num_examples = 10
[gepa]
${gepa}
max_calls = 60
num_train = 20
num_val = 8
num_test = 40
`;

/** Files that a run file of this world names. */
export function filesOfWorld(): Readonly<Record<string, string>> {
  return { 'obey.jsonl': demonstrations(), 'say.ts': environment };
}

/** Its environment imports us. */
export async function linkRatchet(folder: string): Promise<void> {
  await mkdir(path.join(folder, 'node_modules'));
  await symlink(repositoryFolder, path.join(folder, 'node_modules/ratchet'));
}

export interface ReflectionServer {
  readonly url: string;
  /** How often. */
  readonly asked: () => number;
  readonly close: () => void;
}

/**
 * The requested model decides the prompt it writes: one that helps (`knows`), one under which nothing is right, or none
 * (`sick`).
 */
export async function openReflectionServer(): Promise<ReflectionServer> {
  let reflections = 0;
  const reflection = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      // A worker asks a server on the loopback first whether it is the project's own.
      if (request.method === 'GET') {
        response.writeHead(404).end();
        return;
      }
      reflections += 1;
      const { model } = JSON.parse(Buffer.concat(parts).toString()) as { model: string };
      const isSick = model === 'sick';
      const content = `Better:\n\`\`\`\n${model === 'knows' ? 'COPY' : 'IDLE'}\n\`\`\``;
      const choices = [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content } }];
      response.writeHead(isSick ? 401 : 200, { 'content-type': 'application/json' });
      if (isSick) response.end('{"error":{"message":"no such key"}}');
      else response.end(JSON.stringify({ id: 'r', object: 'chat.completion', created: 0, model, choices }));
    });
  });
  await new Promise<void>((resolve) => void reflection.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(reflection.address() as AddressInfo).port}/v1`,
    asked: () => reflections,
    close: () => void reflection.close(),
  };
}
