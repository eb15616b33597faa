/** A real verifiers environment that is installed, upgraded and removed while the process with environments lives. */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, realpathSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { environments, environmentsFor } from '../../backends/environments/index.ts';
import { sitePackages } from '../../backends/environments/packages/installed.ts';
import { closeProcesses } from '../../host/processes-open.ts';
import { installPython } from '../python-here.ts';

const { python, why } = await installPython('verifiers-v0-requirements.txt');
const venv = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-installed-while-')));
const children = process.env['RATCHET_PYTHON_CHILDREN'];
process.env['RATCHET_PYTHON_CHILDREN'] = '1';
after(async () => {
  await closeProcesses();
  if (children === undefined) delete process.env['RATCHET_PYTHON_CHILDREN'];
  else process.env['RATCHET_PYTHON_CHILDREN'] = children;
  rmSync(venv, { recursive: true });
});

const code = (reward: string): string => `import verifiers as vf
from datasets import Dataset


def ${reward}(completion, **kwargs) -> float:
    return 1.0


def load_environment():
    rows = Dataset.from_list([{"question": "a", "answer": "b"}])
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[${reward}]))
`;

function install(site: string, name: string, version: string, reward: string): void {
  const about = path.join(site, `${name}-${version}.dist-info`);
  mkdirSync(about, { recursive: true });
  writeFileSync(path.join(about, 'METADATA'), `Name: ${name}\nVersion: ${version}\n\n`);
  // Behind a .pth file, as editable packages are: Python reads those when it begins.
  mkdirSync(path.join(venv, 'sources', name), { recursive: true });
  writeFileSync(path.join(venv, 'sources', name, `${name}.py`), code(reward));
  writeFileSync(path.join(site, `__editable__.${name}.pth`), `${path.join(venv, 'sources', name)}\n`);
}

const entry = (name: string, version: string) => ({
  id: name,
  args: {},
  python: { module: name, api: 'v0' as const, folder: venv, verifiers: '0.3.1', version },
});

test(
  'the next run or evaluation plays what is installed then; one that is under way keeps what it has',
  { skip: why },
  async () => {
    execFileSync(python, ['-m', 'venv', '--without-pip', venv]);
    const [site] = sitePackages(venv);
    const [below] = sitePackages(path.dirname(path.dirname(python)));
    writeFileSync(path.join(site!, 'ratchet-base.pth'), `${below!}\n`);
    const rewardOf = async (user: string, name: string, version: string): Promise<string | undefined> =>
      (await environmentsFor(environments, user).open(entry(name, version))).rubric.functions[0]?.name;

    install(site!, 'env_a', '0.1', 'first');
    assert.equal(await rewardOf('run 1', 'env_a', '0.1'), 'first');
    await assert.rejects(rewardOf('run 2', 'env_b', '0.1'), /no module env_b/);
    install(site!, 'env_b', '0.1', 'installed_meanwhile');
    assert.equal(await rewardOf('run 2', 'env_b', '0.1'), 'installed_meanwhile');

    renameSync(path.join(site!, 'env_a-0.1.dist-info'), path.join(site!, 'env_a-0.2.dist-info'));
    install(site!, 'env_a', '0.2', 'second');
    assert.equal(await rewardOf('run 3', 'env_a', '0.2'), 'second');
    assert.equal(await rewardOf('run 1', 'env_a', '0.1'), 'first');

    rmSync(path.join(site!, '__editable__.env_b.pth'));
    rmSync(path.join(site!, 'env_b-0.1.dist-info'), { recursive: true });
    await assert.rejects(rewardOf('run 4', 'env_b', '0.1'), /no module env_b/);
  },
);
