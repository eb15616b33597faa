/** Environments that show pictures: evaluated through an API that gets every picture as it is, and refused for models of text alone. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test, type TestContext } from 'node:test';
import { openDatasets } from '../../backends/environments/open-datasets.ts';
import { closeProcesses } from '../../host/processes-open.ts';
import type { EvaluationInput } from '../../core/eval/evaluation.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import { ResultFile } from '../../runs/evaluations/result-file.ts';
import { type FakeModelServer, fakeModelServer, reply } from '../backends/fake-model-server.ts';
import { modulePaths } from '../backends/python-bridge.ts';
import { installPython } from '../python-here.ts';
import { evaluateAll, evaluationFolder, evaluationId, inputFor, openEvaluation, rowsIn } from './evaluation-runs.ts';

const pixel =
  'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const address = 'https://example.org/chart.png?a=1&b=é';
/** The picture in words, as it is shown. */
const inWords = /^\[image image\/png, 70 bytes, [0-9a-f]{8}\]$/;

/** A scripted API that records its requests. */
async function api(t: TestContext, owner = 'somebody'): Promise<FakeModelServer> {
  const server = await fakeModelServer(t);
  server.answers = {
    '/v1/chat/completions': (_, response) =>
      reply(response, 200, {
        choices: [{ index: 0, finish_reason: 'stop', message: { role: 'assistant', content: 'cba' } }],
        usage: { prompt_tokens: 3, completion_tokens: 1 },
      }),
    '/v1/models': (_, response) => reply(response, 200, { data: [{ id: 'mock', owned_by: owner }] }),
  };
  return server;
}

/** The contents of what the API was asked, prompt by prompt. */
function contentsAsked({ calls }: FakeModelServer): unknown[][] {
  return calls
    .filter(({ route }) => route === '/v1/chat/completions')
    .map(({ body }) => (body['messages'] as { content: unknown }[]).map(({ content }) => content));
}

describe('a native environment with pictures', () => {
  const code = (
    prompt: string,
    more = '',
  ): string => `import { listDataset, multiTurn, rubric, singleTurn } from 'ratchet-rl/environments';
const image = { type: 'image_url', image_url: { url: ${JSON.stringify(pixel)}, detail: 'low' } };
const rows = [${prompt}];
export function loadEnvironment() {
  const dataset = listDataset(rows.map((content) => ({ prompt: [{ role: 'user', content }], answer: 'cba' })));
  const right = ({ completion, example, messages }) => Number(completion === example.answer && messages[0].content.includes('[image '));
  const common = { name: 'native', dataset, evalDataset: dataset, rubric: { functions: [{ name: 'right', weight: 1, score: right }] } };
  ${more === '' ? 'return singleTurn(common);' : more}
}
`;
  const input = (t: TestContext, folder: string, url: string, text: string, over: Partial<EvaluationInput> = {}) => {
    const id = path.join(folder, 'native.mjs');
    writeFileSync(id, text);
    return inputFor(folder, { url }, { environment: { id, name: 'native', args: {} }, numExamples: 2, rolloutsPerExample: 2, ...over }); // prettier-ignore
  };
  const twoPrompts = "[{ type: 'text', text: 'Colour?' }, image], 'only text'";

  test('is played through an API, which gets the parts as they are; rewards and results are told them in words', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await api(t)];
    const { result } = await evaluateAll(input(t, folder, server.url, code(twoPrompts)));
    const image = { type: 'image_url', image_url: { url: pixel, detail: 'low' } };
    const asked = contentsAsked(server).map(([content]) => content);
    assert.deepEqual(asked.toSorted((a) => (typeof a === 'string' ? 1 : -1)), [[{ type: 'text', text: 'Colour?' }, image], [{ type: 'text', text: 'Colour?' }, image], 'only text', 'only text']); // prettier-ignore
    assert.equal(result.avgReward, 0.5, 'the picture’s words reach the reward function');
    const file = await new ResultFile(path.join(folder, evaluationId, 'results.jsonl'), 2).read();
    const [prompt] = (await file.row(0))!.prompt;
    assert.match(prompt!.text, /^Colour\?\[image image\/png, 70 bytes, [0-9a-f]{8}\]$/);
    assert.equal(new Set(file.rows.map(({ promptDigest }) => promptDigest)).size, 2);
  });

  test('may show pictures in its answers; what is stored of them are their words', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await api(t)];
    const answers = `return multiTurn({ ...common, maxTurns: 2, setup: () => null, respond: () => ({ state: null, say: [{ role: 'user', content: [image] }] }) });`;
    await evaluateAll(input(t, folder, server.url, code("'Look.'", answers), { rolloutsPerExample: 1 }));
    assert.deepEqual(contentsAsked(server).at(-1), ['Look.', 'cba', [{ type: 'image_url', image_url: { url: pixel, detail: 'low' } }]]); // prettier-ignore
    const [row] = await rowsIn(path.join(folder, evaluationId));
    const heard = (row!['completion'] as { content: string }[])[1]!.content;
    assert.match(heard, inWords);
  });

  test('is refused by name, and nothing is asked, for an engine that reads text alone', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await api(t, 'ratchet')];
    await assert.rejects(
      openEvaluation(input(t, folder, server.url, code(twoPrompts))),
      /mock reads text alone, and example 0 of native has a part of the type "image_url"\. Evaluate .* ratchet-rl eval run native -m MODEL/,
    );
    assert.deepEqual(contentsAsked(server), []);
  });

  test('is refused by name before a run trains or evaluates on it', async (t) => {
    const folder = await evaluationFolder(t);
    const { environment } = input(t, folder, 'http://127.0.0.1:1', code(twoPrompts));
    const entry = { ...environment, weight: 1 };
    const spec = { environments: [entry], eval: null, sft: null, teacher: null } as unknown as RunSpec;
    await assert.rejects(openDatasets(spec), /\[env\]: expected environments whose prompts are text; example 0 of native has a part of the type "image_url"/); // prettier-ignore
    const evaluated = { ...spec, environments: [], eval: { environments: [entry] } } as unknown as RunSpec;
    await assert.rejects(
      openDatasets(evaluated),
      /The model that is trained reads text alone, and example 0 of native/,
    );
  });

  test('whose part has no type is refused with the forms that there are', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await api(t)];
    const opening = openEvaluation(input(t, folder, server.url, code("[{ image: 'x' }]")));
    await assert.rejects(opening, /a part without a type; expected \{ type: "text", text \} or \{ type: "image_url"/);
  });
});

const { python, why: skip } = await installPython('verifiers-v0-requirements.txt');
const pythonPath = process.env['PYTHONPATH'];
after(async () => {
  await closeProcesses();
  if (pythonPath === undefined) delete process.env['PYTHONPATH'];
  else process.env['PYTHONPATH'] = pythonPath;
});

describe('a multimodal environment of verifiers', { skip, concurrency: false }, () => {
  // Python's processes keep their logs in the folder where they are started.
  const project = process.cwd();
  const place = mkdtempSync(path.join(tmpdir(), 'ratchet-images-'));
  before(() => process.chdir(place));
  after(async () => {
    await closeProcesses();
    process.chdir(project);
    rmSync(place, { recursive: true, force: true });
  });
  process.env['PYTHONPATH'] = modulePaths.join(path.delimiter);
  const input = (
    folder: string,
    url: string,
    args: Record<string, number> = {},
    over: Partial<EvaluationInput> = {},
  ) => {
    const folderOfPython = path.dirname(path.dirname(python));
    const module = {
      module: 'toy_images',
      api: 'v0',
      folder: folderOfPython,
      verifiers: '0.3.1',
      version: '0',
    } as const;
    return inputFor(folder, { url }, { environment: { id: 'toy-images', name: 'toy-images', args, python: module }, numExamples: 2, rolloutsPerExample: 1, ...over }); // prettier-ignore
  };

  test('is evaluated through an API, which gets each picture byte for byte, and scored from what is stored', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await api(t)];
    const { result } = await evaluateAll(input(folder, server.url));
    assert.equal(result.avgReward, 1);
    const asked = contentsAsked(server).map(
      ([content]) => content as { image_url?: { url: string; detail?: string } }[],
    );
    const urls = asked.map((parts) => parts[1]!.image_url!);
    assert.deepEqual(urls.toSorted((a) => (a.url === pixel ? -1 : 1)), [{ url: pixel, detail: 'high' }, { url: address }]); // prettier-ignore
    for (const parts of asked) assert.deepEqual(Object.keys(parts[0]!), ['type', 'text'], 'no columns that are null');
    const rows = await rowsIn(path.join(folder, evaluationId));
    assert.deepEqual(rows.map(({ metrics }) => metrics), [{ said: 1, shown: 1, num_turns: 1 }, { said: 1, shown: 1, num_turns: 1 }]); // prettier-ignore
    const file = await new ResultFile(path.join(folder, evaluationId, 'results.jsonl'), 1).read();
    const shown = await Promise.all([0, 1].map(async (i) => (await file.row(i))!.prompt[0]!.text));
    assert.match(shown[0]!, /^Which colour 0\?\[image image\/png, 70 bytes, [0-9a-f]{8}\]$/);
    assert.equal(shown[1], `Which colour 1?[image ${address}]`);
  });

  test('shows further pictures turn by turn, and each prompt has all of them', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await api(t)];
    await evaluateAll(input(folder, server.url, { turns: 3 }, { numExamples: 1 }));
    const last = contentsAsked(server).at(-1)!;
    const pictures = last.map((content) => (Array.isArray(content) ? content.filter((part: { type: string }) => part.type === 'image_url').length : 0)); // prettier-ignore
    assert.deepEqual(pictures, [1, 0, 1, 0, 1]);
    const [row] = await rowsIn(path.join(folder, evaluationId));
    assert.equal((row!['metrics'] as { shown: number }).shown, 3);
  });

  test('with large pictures has them whole where it is asked, and in words in its results', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await api(t)];
    await evaluateAll(input(folder, server.url, { bytes: 300_000 }, { numExamples: 1, rolloutsPerExample: 2 }));
    const [[content]] = contentsAsked(server) as [[{ image_url?: { url: string } }[]]];
    assert.equal(content[1]!.image_url!.url.length, 'data:image/png;base64,'.length + 300_000);
    const rows = await rowsIn(path.join(folder, evaluationId));
    assert.equal(rows.length, 2);
    for (const row of rows) {
      assert(JSON.stringify(row).length < 20_000);
      assert.match(JSON.stringify(row['prompt']), /\[image image\/png, 225000 bytes, /);
      assert.equal(row['reward'], 1);
    }
  });

  test('is refused by name for an engine that reads text alone', async (t) => {
    const [folder, server] = [await evaluationFolder(t), await api(t, 'ratchet')];
    await assert.rejects(
      openEvaluation(input(folder, server.url)),
      /mock reads text alone, and example 0 of toy-images/,
    );
  });
});
