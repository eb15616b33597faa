/** Columns in which a branch of the run looks for a better prompt: what its run has besides, and how it must end. */
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import type { PromptSearchResult } from '../../core/gepa/prompt-search.ts';
import { layout } from '../../runs/layout.ts';
import { decodeJson } from '../../store/objects.ts';
import { statusQuery } from '../../workflows/control/messages.ts';
import type { FaultStage, StagedRun } from './stage.ts';

/** Its own prompt is none; each mark more in a prompt makes the fake inference a little better, up to this many. */
const marksMax = 4;

let reflection: Promise<string> | null = null;

/** Writes one mark more than there are. One for all cells; it does not hold up the end of the tests. */
function reflectionUrl(): Promise<string> {
  reflection ??= new Promise((resolve) => {
    const server = createServer((request, response) => {
      const parts: Buffer[] = [];
      request.on('data', (part: Buffer) => parts.push(part));
      request.on('end', () => {
        const current = /```\\n(!*)\\n```/.exec(Buffer.concat(parts).toString())?.[1] ?? '';
        const content = `\`\`\`\n${'!'.repeat(Math.min(marksMax, current.length + 1))}\n\`\`\``;
        const choices = [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content } }];
        response.setHeader('content-type', 'application/json');
        response.end(JSON.stringify({ id: 'r', object: 'chat.completion', created: 0, model: 'marks', choices }));
      });
    });
    server.listen(0, '127.0.0.1', () => {
      server.unref();
      resolve(`http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`);
    });
  });
  return reflection;
}

/**
 * Its servers hold one version: training waits while the branch runs, so that it has ended when the run ends, whatever
 * happens. Its winner is not adopted, so that the weights are those of any run.
 */
export async function branchOverrides(): Promise<Readonly<Record<string, string>>> {
  return {
    'tokenizer.chat_template': fileURLToPath(new URL('marked-template.jinja', import.meta.url)),
    'inference.options.holdsOne': 'true',
    'gepa.at_steps': '[1]',
    'gepa.reflection_model': 'marks',
    'gepa.url': await reflectionUrl(),
    'gepa.max_calls': '60',
    'gepa.num_train': '40',
    'gepa.num_val': '10',
    'gepa.num_test': '20',
    'gepa.adopt': 'never',
  };
}

/**
 * The branch's result and its number of calls. The newest version at that time varies, so both prompts are tried on it.
 */
export async function branchOutcome(stage: FaultStage, { name, store }: StagedRun): Promise<string> {
  const { branchesEnded } = await stage.client.workflow.getHandle(name).query(statusQuery);
  const ended = branchesEnded?.['reverse-text'];
  assert.equal(ended?.verdict, 'told', ended?.text ?? 'the branch of the run has ended');
  const key = `${layout.promptBranch('main', 'reverse-text', name, [1])}search/summary.json`;
  const found = decodeJson<PromptSearchResult>((await store.read(key))!, key);
  const { seconds: _, place: __, folder: ___, model: ____, bestPrompt, ...rest } = found;
  return JSON.stringify({ ...rest, id: '', prompt: bestPrompt?.sha256 });
}
