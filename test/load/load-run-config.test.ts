import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { chmod, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, test, type TestContext } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { hasCode } from '../store/store.contract.ts';

const config = (model: string) => `
model = "${model}"
max_steps = 2
batch_size = 8
rollouts_per_example = 4
[sampling]
max_tokens = 10
[[env]]
id = "reverse-text"
`;

async function project(t: TestContext, files: Readonly<Record<string, string>>): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'ratchet #1 '));
  t.after(() => rm(folder, { recursive: true, force: true }));
  for (const [name, text] of Object.entries(files)) {
    await mkdir(path.dirname(path.join(folder, name)), { recursive: true });
    await writeFile(path.join(folder, name), text);
  }
  return folder;
}

describe('loading a run’s config', () => {
  test('the config that comes with Ratchet is valid and warns of nothing', async (t) => {
    const file = fileURLToPath(new URL('../../configs/rl/reverse-text.toml', import.meta.url));
    const projectFolder = await project(t, {});
    const { spec, warnings } = await loadRunConfig(file, { projectFolder });
    assert.deepEqual(warnings, []);
    assert.equal(spec.name, 'reverse-text');
    assert.equal(spec.model, 'preset:reverse-text-0.2m');
    assert.equal(spec.store.uri, pathToFileURL(`${projectFolder}/outputs/`).href);
  });

  test('env_files are said to have no effect where every environment is known to be no Python package', async (t) => {
    const of = async (environment: string): Promise<readonly string[]> => {
      const text = config('preset:reverse-text-0.2m').replace('reverse-text"\n', `${environment}"\n`);
      const projectFolder = await project(t, {
        'words.toml': `env_files = ["keys.env"]\n${text}`,
        'keys.env': 'A=1\n',
      });
      const file = path.join(projectFolder, 'words.toml');
      return (await loadRunConfig(file, { projectFolder, isOnlyLookedAt: true })).warnings;
    };
    const said = /env_files has no effect/;
    assert.match((await of('reverse-text')).join('\n'), said);
    // A package of the Hub that is not installed is most likely one.
    assert.doesNotMatch((await of('owner/not-installed')).join('\n'), said);
  });

  test('code of its own is looked at, said aloud and not run', async (t) => {
    const custom = '[trainer.loss]\ntype = "custom"\nimport = "./my-loss.js"\n';
    const projectFolder = await project(t, {
      'configs/words.toml': config('preset:reverse-text-0.2m') + custom,
      'configs/my-loss.js': 'throw new Error("it was run");',
      'configs/deep/outside.toml': config('preset:reverse-text-0.2m') + custom.replace('./my', '../my'),
      'configs/deep/missing.toml': config('preset:reverse-text-0.2m') + custom,
    });
    const { spec, warnings } = await loadRunConfig('configs/words.toml', { projectFolder });
    const file = path.join(projectFolder, 'configs', 'my-loss.js');
    assert.deepEqual(spec.loss.import, {
      path: file,
      sha256: createHash('sha256').update('throw new Error("it was run");').digest('hex'),
    });
    assert.match(warnings.join(), /executes code of its own: .*my-loss.js/);
    const load = (name: string) => loadRunConfig(`configs/deep/${name}.toml`, { projectFolder });
    await assert.rejects(load('outside'), hasCode('ConfigInvalid', 'leads out of'));
    await assert.rejects(load('missing'), hasCode('ConfigInvalid', 'there is no such file'));
    await symlink('../my-loss.js', path.join(projectFolder, 'configs/deep/my-loss.js'));
    await assert.rejects(load('missing'), hasCode('ConfigInvalid', 'is a link that leads out of'));
  });

  test('the example with a loss and an advantage of its own is valid', async (t) => {
    const file = fileURLToPath(new URL('../../configs/rl/custom-loss/custom-loss.toml', import.meta.url));
    const { spec, warnings } = await loadRunConfig(file, { projectFolder: await project(t, {}) });
    assert.equal(spec.loss.type, 'custom');
    assert.equal(warnings.length, 2);
  });

  test('overrides and a name from the command line win over the file', async (t) => {
    const projectFolder = await project(t, { 'configs/words.toml': config('preset:reverse-text-0.2m') });
    const { spec } = await loadRunConfig('configs/words.toml', {
      projectFolder,
      overrides: { 'max-steps': '7', 'sampling.temperature': '0.5' },
      run: 'mine',
    });
    assert.deepEqual([spec.name, spec.maxSteps, spec.sampling.temperature], ['mine', 7, 0.5]);
  });

  const models: readonly (readonly [written: string, where: string])[] = [
    ['preset:reverse-text-0.2m', 'preset:reverse-text-0.2m'],
    ['/models/qwen', '/models/qwen'],
    ['models/qwen', '{project}/models/qwen'],
    ['Qwen/Qwen3-4B', 'Qwen/Qwen3-4B'], // on the Hub, since no folder here has the name
    ['./qwen', '{project}/configs/qwen'],
    ['../qwen', '{project}/qwen'],
  ];
  for (const [written, where] of models) {
    test(`model "${written}" in configs/ means ${where}`, async (t) => {
      const projectFolder = await project(t, {
        'configs/words.toml': config(written),
        'models/qwen/config.json': '{}',
      });
      const { spec } = await loadRunConfig('configs/words.toml', { projectFolder });
      assert.equal(spec.model, where.replace('{project}', projectFolder));
    });
  }

  test('every problem is named at once, with its file and line', async (t) => {
    const text = config('preset:reverse-text-0.2m')
      .replace('max_steps = 2', 'max_step = 2')
      .replace('"reverse-text"', '"revers-text"');
    const projectFolder = await project(t, { 'bad.toml': text });
    await assert.rejects(
      loadRunConfig('bad.toml', { projectFolder }),
      hasCode('ConfigInvalid', 'bad.toml:3', 'max_steps', 'reverse-text'),
    );
  });

  test('a file that is not there is refused with the path that was looked at', async (t) => {
    const projectFolder = await project(t, {});
    await assert.rejects(
      loadRunConfig('configs/none.toml', { projectFolder }),
      hasCode('ConfigInvalid', 'there is no such file', path.join(projectFolder, 'configs/none.toml')),
    );
  });

  test('a file that is named without its ending is refused with its whole name', async (t) => {
    const projectFolder = await project(t, { 'shout.toml': '' });
    await assert.rejects(
      loadRunConfig('shout', { projectFolder }),
      hasCode('ConfigInvalid', 'did you mean shout.toml?'),
    );
  });

  test('a folder is refused as a folder', async (t) => {
    const projectFolder = await project(t, { 'configs/words.toml': '' });
    await assert.rejects(loadRunConfig('configs', { projectFolder }), hasCode('ConfigInvalid', 'it is a folder'));
  });

  test(
    'a file that may not be read says so',
    { skip: process.getuid?.() === 0 && 'root may read anything' },
    async (t) => {
      const projectFolder = await project(t, { 'words.toml': config('preset:reverse-text-0.2m') });
      await chmod(path.join(projectFolder, 'words.toml'), 0);
      await assert.rejects(loadRunConfig('words.toml', { projectFolder }), hasCode('ConfigInvalid', 'EACCES'));
    },
  );

  test('a teacher’s folder that is not there is named, with what to name or do instead', async (t) => {
    const files = {
      'outputs/first/weights/step_20/config.json': '{}',
      'outputs/first/weights/step_100/config.json': '{}',
    };
    const text = config('preset:reverse-text-0.2m').replace('rollouts_per_example = 4', 'rollouts_per_example = 1');
    const folder = await project(t, files);
    const refusal = async (teacher: string): Promise<string> => {
      await writeFile(path.join(folder, 'run.toml'), `loss = "opd"\n${text}[teacher]\nmodel = "${teacher}"\n`);
      return loadRunConfig('run.toml', { projectFolder: folder }).then(
        () => 'accepted',
        (error: unknown) => (error as Error).message,
      );
    };
    const missing = await refusal('outputs/first/weights/step_400');
    assert.match(
      missing,
      /teacher\.model\n.*expected +a folder of weights .*\n.*step_400"\n.*→ the newest version there is outputs\/first\/weights\/step_100$/,
    );
    assert.match(await refusal('outputs/second/weights/step_1'), /→ train the run whose version that is first$/);
    assert.match(await refusal('teacher'), /received +"teacher"$/);
    assert.equal(await refusal('outputs/first/weights/step_100'), 'accepted');
  });
});
