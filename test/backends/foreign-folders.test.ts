/** A worker of our own Temporal server reveals nothing about folders that its user did not name, not even whether they exist. */
import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, realpathSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';
import { loadRunConfig } from '../../load/load-run-config.ts';
import { namedIn, grantNamed } from '../../load/grants/grant.ts';
import { trustedRootsVariable } from '../../core/child-environment.ts';
import { requireModelPlace, trustedFile } from '../../host/trusted-files.ts';
import { writePreset } from '../../backends/testing/index.ts';

interface Place {
  readonly project: string;
  /** A folder of the same user that was not named. */
  readonly elsewhere: string;
}

async function places(t: TestContext): Promise<Place> {
  const folder = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-foreign-')));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const [project, elsewhere] = ['project', 'elsewhere'].map((name) => path.join(folder, name)) as [string, string];
  for (const each of [project, elsewhere]) mkdirSync(each, { mode: 0o755 });
  await writePreset(path.join(elsewhere, 'model'));
  writeFileSync(path.join(elsewhere, 'there.ts'), '');
  return { project, elsewhere };
}

function worker(t: TestContext, project: string): NodeJS.ProcessEnv {
  const before = process.env[trustedRootsVariable];
  process.env[trustedRootsVariable] = project;
  t.after(() => {
    if (before === undefined) delete process.env[trustedRootsVariable];
    else process.env[trustedRootsVariable] = before;
  });
  return process.env;
}

/** The message without the requested name. */
function saidOf(work: () => unknown, name: string): string {
  try {
    work();
  } catch (error) {
    return (error as Error).message.replaceAll(name, 'NAME');
  }
  return 'nothing';
}

test('a refusal reads the same whether or not the file exists', async (t) => {
  const { project, elsewhere } = await places(t);
  const environment = { [trustedRootsVariable]: project };
  symlinkSync(path.join(elsewhere, 'there.ts'), path.join(elsewhere, 'link.ts'));
  const said = ['there.ts', 'not-there.ts', 'link.ts', 'model', 'no/such/folder/x.ts'].map((name) =>
    saidOf(() => trustedFile(path.join(elsewhere, name), 'It', environment), path.join(elsewhere, name)),
  );
  assert.match(said[0]!, /is outside of what was named there/);
  const sameFolder = said.slice(0, 4);
  assert.deepEqual(new Set(sameFolder).size, 1, sameFolder.join('\n'));
  assert.match(said[4]!, /is outside of what was named there/);
  // A missing file in the project passes, and opening it then reports the error.
  assert.equal(trustedFile(path.join(project, 'no.ts'), 'It', environment), path.join(project, 'no.ts'));
});

test('a model or a teacher elsewhere is refused in the same words, and accepted once its user named it', async (t) => {
  const { project, elsewhere } = await places(t);
  const config = path.join(project, 'run.toml');
  writeFileSync(config, 'model = "preset:reverse-text-0.2m"\n[[env]]\nid = "reverse-text"\n');
  const load = (overrides: Readonly<Record<string, string>>) =>
    loadRunConfig(config, { projectFolder: project, overrides });
  const environment = worker(t, project);
  for (const key of ['model', 'teacher.model']) {
    const said: string[] = [];
    for (const name of ['model', 'nothing-there']) {
      const folder = path.join(elsewhere, name);
      await load({ [key]: folder, ...(key === 'model' ? {} : { 'trainer.loss.teacher_tau': '0.5' }) }).then(
        () => said.push('taken'),
        (error: Error) => said.push(error.message.replaceAll(folder, 'FOLDER')),
      );
    }
    assert.match(said[0]!, /FOLDER is not taken from Temporal.*Expected the line "model FOLDER"/s, key);
    assert.equal(said[0], said[1], key);
  }
  const model = path.join(elsewhere, 'model');
  delete process.env[trustedRootsVariable];
  const { spec } = await load({ model });
  grantNamed(project, namedIn(spec));
  process.env[trustedRootsVariable] = project;
  assert.equal((await load({ model })).spec.model, model);
  assert.throws(() => requireModelPlace(elsewhere, 'The model', environment), /is not taken/);
  // Naming a model permits reading it, but not running its code.
  assert.throws(() => trustedFile(path.join(model, 'config.json'), 'It', environment), /is outside/);
});

test('the user’s own run file grants its model', async (t) => {
  const { project, elsewhere } = await places(t);
  const config = path.join(project, 'run.toml');
  const model = path.join(elsewhere, 'model');
  writeFileSync(config, `model = "${model}"\n[[env]]\nid = "reverse-text"\n`);
  worker(t, project);
  assert.equal((await loadRunConfig(config, { projectFolder: project })).spec.model, model);
});
