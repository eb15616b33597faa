import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { loadEnvironment } from '../../backends/environments/load.ts';
import { writeEnvironment } from '../../cli/commands/prepare/env-init.ts';
import { listOwnFiles } from '../../cli/python-environments/list.ts';
import { environmentInfo } from '../../cli/describe/environment-info.ts';
import { environmentName, isEnvironmentFile } from '../../core/names.ts';

const module = (body: string): string =>
  `import { listDataset, rubric, singleTurn } from 'ratchet-rl/environments';\n${body}`;
const good = module(`
const data = listDataset([{ prompt: 'a', answer: 'A' }]);
export const loadEnvironment = () =>
  singleTurn({ name: 'own', dataset: data, evalDataset: data, rubric: rubric([{ name: 'one', weight: 1, score: () => 1 }]) });
`);

let folder: string;
before(() => {
  folder = mkdtempSync(path.join(tmpdir(), 'ratchet-own-'));
});
after(() => rmSync(folder, { recursive: true }));

function write(name: string, text: string): string {
  const file = path.join(folder, name);
  mkdirSync(path.dirname(file), { recursive: true });
  writeFileSync(file, text);
  return file;
}

const toml = (id: string, extra = ''): string =>
  `model = "preset:chars-0.4m"\nbatch_size = 8\nrollouts_per_example = 4\n[sampling]\nmax_tokens = 4\n[[env]]\nid = "${id}"\n${extra}`;
const load = (name: string, text: string) => {
  write(name, text);
  return loadRunConfig(name, { projectFolder: folder });
};

describe("a file of one's own as an environment", () => {
  test('is beside the config, is named after its file, and its sha256 is in the run', async () => {
    const file = write('good.ts', good);
    const { spec, warnings } = await load('run.toml', toml('./good.ts', '[eval]\ninterval = 5\n'));
    const [entry] = spec.environments;
    assert.deepEqual([entry!.id, entry!.name, entry!.sha256?.length], [file, 'good', 64]);
    assert.equal(spec.eval!.environments[0]!.sha256, entry!.sha256);
    assert.equal(warnings.filter((warning) => warning.includes('executes code of its own')).length, 1);
    const environment = await loadEnvironment(entry!.id, {}, { sha256: entry!.sha256 });
    assert.equal(environment.name, 'own');
  });

  test('is found from a folder without packages, and may import files beside it', async () => {
    write('parts/words.ts', module('export const words: readonly string[] = [typeof listDataset];'));
    const file = write(
      'parts/main.ts',
      good
        .replace("'a', answer", 'words[0]!, answer')
        .replace('\nconst', "\nimport { words } from './words.ts';\nconst"),
    );
    assert.equal((await loadEnvironment(file, {})).dataset.at(0).prompt[0]!.content, 'function');
  });

  for (const name of ['changing.ts', 'changing.js']) {
    test(`that was changed is another module, and not the one a run was begun with: ${name}`, async () => {
      const file = write(name, good);
      const { spec } = await load('changing.toml', toml(`./${name}`));
      assert.equal((await loadEnvironment(file, {})).name, 'own');
      writeFileSync(file, good.replace("name: 'own'", "name: 'other'"));
      assert.equal((await loadEnvironment(file, {})).name, 'other');
      await assert.rejects(loadEnvironment(file, {}, { sha256: spec.environments[0]!.sha256 }), {
        code: 'ConfigInvalid',
        message: /changing\.[tj]s was changed in the middle of its run: expected sha256 .*Put it back, or train/,
      });
    });
  }

  test('errors carry file and line', async () => {
    const broken = write('broken.ts', `${module('')}\nconst x = ;\n`);
    await assert.rejects(loadEnvironment(broken, {}), { code: 'ConfigInvalid', message: /broken\.ts:3:\d+/ });
    const throwing = write(
      'throwing.ts',
      module('\n\nexport function loadEnvironment() {\n  throw new Error("no luck");\n}'),
    );
    await assert.rejects(loadEnvironment(throwing, {}), {
      code: 'ConfigInvalid',
      message: /throwing\.ts:5:\d+\n {2}Error: no luck/,
    });
    const hollow = write('hollow.ts', 'export const loadEnvironment = () => ({ name: "x" });');
    await assert.rejects(loadEnvironment(hollow, {}), /hollow\.ts: .*missing: dataset, evalDataset, rubric, rollout/);
    for (const length of ['-1', '1.5', 'NaN']) {
      const rows = `{ at: () => ({ prompt: [] }), length: ${length} }`;
      const text = `export const loadEnvironment = () => ({ name: 'x', dataset: ${rows}, evalDataset: ${rows}, rubric: { functions: [] }, rollout() {} });`;
      const counted = write(`counted${length.length}${length}.ts`, text);
      await assert.rejects(
        loadEnvironment(counted, {}),
        new RegExp(`dataset\\.length is ${length}; expected .*integer ≥ 0`),
      );
    }
    await assert.rejects(loadEnvironment(path.join(folder, 'gone.ts'), {}), { code: 'EnvironmentUnknown' });
  });

  test('one that waits for what never comes is given up, at its import and when it is made', async () => {
    const importing = write('never.ts', `await new Promise(() => {});\n${good}`);
    const making = write('waits.ts', 'export const loadEnvironment = () => new Promise(() => {});');
    const ends = (what: string) => ({ code: 'ConfigInvalid', message: new RegExp(`${what} has not come to its end`) });
    await assert.rejects(loadEnvironment(importing, {}, { timeoutMs: 300 }), ends('never.ts: its import'));
    await assert.rejects(loadEnvironment(making, {}, { timeoutMs: 300 }), ends(String.raw`loadEnvironment\(args\)`));
  });

  test('one that ends the process is refused, at its import and when it is made', async () => {
    const exit = Object.getOwnPropertyDescriptor(process, 'exit');
    for (const text of ['process.exit(7);\n', module('export const loadEnvironment = () => process.exit(7);\n')]) {
      const file = write('exits.ts', text);
      await assert.rejects(
        loadEnvironment(file, {}),
        /exits\.ts ends the process while it is loaded: process\.exit\(7\)/,
      );
    }
    assert.deepEqual(Object.getOwnPropertyDescriptor(process, 'exit'), exit);
  });

  test(
    'a FIFO that is called as one might be is none of the environments here',
    { skip: process.platform === 'win32' },
    () => {
      const place = path.join(folder, 'with-fifo');
      mkdirSync(place);
      execFileSync('mkfifo', [path.join(place, 'fifo.ts')]);
      writeFileSync(path.join(place, 'own.ts'), good);
      assert.deepEqual(listOwnFiles(place), ['./own.ts']);
    },
  );

  test("a file that leads out of the config's folder, or is not there, is refused by the config", async () => {
    write('good.ts', good);
    await assert.rejects(
      load('inner/out.toml', toml('../good.ts')),
      /out\.toml:7:1 {2}env\[0\]\.id\n.*expected {2}a file .*\n.*leads out of/,
    );
    await assert.rejects(load('gone.toml', toml('./gone.ts')), /env\[0\]\.id\n[\s\S]*there is no such file/);
  });

  test('its name in the run is one that folders and metrics can have', () => {
    assert.equal(environmentName('./my env.ts'), 'my-env');
    assert.equal(environmentName('/a/b/index.ts'), 'b');
    assert.equal(environmentName('./agg.mjs'), 'environment');
    for (const id of ['./a.ts', '../a.mjs', '/x/a.js']) assert.ok(isEnvironmentFile(id), id);
    for (const id of ['a.ts', './a', './a.py', 'owner/a', './.ts']) assert.ok(!isEnvironmentFile(id), id);
  });
});

describe('ratchet env', () => {
  test('init writes a run that loads as it is, and overwrites nothing', async () => {
    const place = path.join(folder, 'new');
    mkdirSync(place);
    await writeEnvironment('first', place);
    assert.deepEqual(readdirSync(place).sort(), ['first.toml', 'first.ts']);
    const before = readFileSync(path.join(place, 'first.ts'), 'utf8');
    assert.doesNotMatch(before, /my-env/);
    await assert.rejects(writeEnvironment('first', place), /first\.ts and first\.toml are here already/);
    assert.equal(readFileSync(path.join(place, 'first.ts'), 'utf8'), before);
    const { spec } = await loadRunConfig('first.toml', { projectFolder: place });
    assert.equal(spec.environments[0]!.name, 'first');
    for (const name of ['', 'Über', '../x', 'a/b', 'a.b', '-x']) {
      await assert.rejects(writeEnvironment(name, place), /cannot be an environment's name/, name);
    }
  });

  test('init writes an environment with a tool, or with several turns, that is played as it is', async () => {
    for (const [shape, shows] of [
      ['tools', /tools {9}price\(thing\)[^]*assistant {2}<tool_call>\n[^]*reward 1\.2 = 1 × right 1 \+ 0\.2 × asked 1/],
      ['multi-turn', /rollouts {6}several turns|rollouts[^]*\n {2}user {7}(?:more|less)/],
    ] as const) {
      const place = path.join(folder, `new-${shape}`);
      mkdirSync(place);
      await writeEnvironment('shop', place, shape);
      assert.doesNotMatch(readFileSync(path.join(place, 'shop.ts'), 'utf8'), /my-env/);
      const { spec } = await loadRunConfig('shop.toml', { projectFolder: place });
      assert.equal(spec.environments[0]!.name, 'shop');
      const told = await Promise.all(
        [0, 1, 2, 3].map((example) => environmentInfo(path.join(place, 'shop.ts'), {}, { example, heldOut: false })),
      );
      assert.match(told.join('\n'), shows);
    }
  });

  test('info says examples, arguments with defaults, rewards, and scores a demonstration', async () => {
    const place = path.join(folder, 'shown');
    mkdirSync(place);
    await writeEnvironment('shown', place);
    const text = await environmentInfo(path.join(place, 'shown.ts'), { words: 200 }, { example: 0, heldOut: false });
    assert.match(text, /examples {6}\d+ to train on, \d+ held out/);
    assert.match(text, /arguments {5}words {7}= 2000 {2}integer from 100 to 100000/);
    assert.match(text, /rewards {7}letters_right {2}weight 1\n {16}exact_match {4}metric only/);
    assert.match(text, /ok, reward [\d.]+ = 1 × letters_right [\d.]+ {3}\(exact_match \d\)/);
  });

  test('info of an example that there is not says how many there are', async () => {
    await assert.rejects(environmentInfo('wordle', {}, { example: 999_999, heldOut: true }), {
      code: 'ConfigInvalid',
      message: /wordle has \d+ held-out examples, counted from 0; received 999999/,
    });
  });

  test('an argument that breaks a rule with another is told by itself', async () => {
    await assert.rejects(loadEnvironment('alphabet-sort', { min_turns: 5, max_turns: 2 }), {
      message: /args\.min_turns: expected at most max_turns, received 5$/m,
    });
  });

  test('info shows tools, and a conversation with them', async () => {
    const text = await environmentInfo('wiki-search', {}, { example: 1, heldOut: true });
    assert.match(text, /tools {9}search_pages\(query\) +Finds pages/);
    assert.match(text, /assistant {2}<tool_call>/);
    assert.match(text, /\n {2}tool {7}\S/);
    assert.match(text, /reward 1 = 1 × exact_match 1/);
  });
});
