import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, readFileSync, realpathSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test, type TestContext } from 'node:test';
import { installService, planService, uninstallService, type ServiceOptions } from '../../workers/stack/service.ts';
import { temporaryFolder } from './fixtures/processes.ts';

/** Characters that a path may have and a unit must not misread. */
const awkward = `it's 100% "my" $HOME \\n & <co>`;

function optionsFor(t: TestContext, more: Partial<ServiceOptions> = {}): ServiceOptions {
  const home = realpathSync(temporaryFolder(t));
  const projectFolder = join(home, awkward);
  mkdirSync(projectFolder);
  const program = join(home, 'my node');
  symlinkSync(process.execPath, program);
  const command = [program, `/opt/100% $HOME/ratchet "x".mjs`, 'dev', '--weights', 'outputs'];
  const env = { PATH: '/usr/bin:/bin', RATCHET_CACHE: `/big disk/100%` };
  return { projectFolder, command, platform: 'linux', hasSystemd: true, home, user: 'me', env, ...more };
}

test('a systemd unit that the machine accepts says what is run, where, and that workers end before the server', (t) => {
  const plan = planService(optionsFor(t));
  assert.match(plan.file, /\/\.config\/systemd\/user\/ratchet-it-s-100-my-home-n-co-[0-9a-f]{8}\.service$/);
  const lines = plan.text.split('\n');
  for (const line of ['KillMode=mixed', 'Restart=on-failure', 'WantedBy=default.target', 'Type=exec']) {
    assert.ok(lines.includes(line), line);
  }
  assert.ok(lines.includes('Environment="RATCHET_CACHE=/big disk/100%%"'));
  const start = lines.find((line) => line.startsWith('ExecStart=')) ?? '';
  assert.match(
    start,
    /^ExecStart=".*\/my node" "\/opt\/100%% \$\$HOME\/ratchet \\"x\\"\.mjs" "dev" "--weights" "outputs"$/,
  );
  assert.match(plan.text, /^WorkingDirectory=\/.*\/it's 100%% "my" \$HOME \\n & <co>$/m);
  assert.ok(plan.toEnable.some((line) => line.startsWith('loginctl enable-linger me')));
});

const analyze = (): string | null => {
  try {
    return execFileSync('systemd-analyze', ['--version'], { encoding: 'utf8' });
  } catch {
    return null;
  }
};

test(
  'systemd itself finds nothing wrong with the unit',
  { skip: analyze() ? false : 'there is no systemd-analyze' },
  (t) => {
    const plan = planService(optionsFor(t));
    installService(plan);
    const said = execFileSync(
      'sh',
      ['-c', 'systemd-analyze --user --man=no verify "$1" 2>&1; echo "ended $?"', 'sh', plan.file],
      {
        encoding: 'utf8',
        env: { PATH: process.env['PATH'], HOME: dirname(plan.file), XDG_RUNTIME_DIR: dirname(plan.file) },
      },
    );
    assert.doesNotMatch(said, new RegExp(plan.name), said);
    writeFileSync(plan.file, plan.text.replace('KillMode=mixed', 'KillMode=sometimes'));
    const wrong = execFileSync(
      'sh',
      ['-c', 'systemd-analyze --user --man=no verify "$1" 2>&1; true', 'sh', plan.file],
      {
        encoding: 'utf8',
        env: { PATH: process.env['PATH'], HOME: dirname(plan.file), XDG_RUNTIME_DIR: dirname(plan.file) },
      },
    );
    assert.match(wrong, /kill ?mode/i, 'it looks at what it is given');
  },
);

test('a launchd plist holds the same, escaped, and reads back as it was meant', (t) => {
  const options = optionsFor(t, { platform: 'darwin', hasSystemd: false });
  const plan = planService(options);
  assert.match(plan.file, /\/Library\/LaunchAgents\/ratchet-.*\.plist$/);
  assert.equal(stringAfter(plan.text, 'WorkingDirectory'), realpathSync(options.projectFolder));
  assert.equal(stringAfter(plan.text, 'Label'), plan.name);
  assert.equal(stringAfter(plan.text, 'RATCHET_CACHE'), '/big disk/100%');
  const [, list = ''] = /<key>ProgramArguments<\/key><array>(.*)<\/array>/.exec(plan.text) ?? [];
  assert.deepEqual(
    [...list.matchAll(/<string>(.*?)<\/string>/g)].map(([, one]) => unescape(one!)),
    options.command,
  );
  assert.match(plan.text, /<key>SuccessfulExit<\/key><false\/>/);
});

test('no secret of the shell is written, and it is said where it goes instead', (t) => {
  const secrets = {
    TEMPORAL_API_KEY: 'canary-1',
    RATCHET_PAYLOAD_KEY: 'canary-2',
    AWS_SECRET_ACCESS_KEY: 'canary-3',
    TEMPORAL_TLS_CLIENT_KEY_DATA: 'canary-4',
    HTTPS_PROXY: 'http://me:canary-5@proxy:8080',
    WANDB_API_KEY: 'canary-6',
  };
  const names = {
    TEMPORAL_ADDRESS: 'cloud:7233',
    TEMPORAL_TLS_CLIENT_KEY_PATH: '/keys/k',
    RATCHET_PAYLOAD_KEY_FILE: '/keys/p',
  };
  for (const platform of ['linux', 'darwin'] as const) {
    const plan = planService(optionsFor(t, { platform, env: { ...secrets, ...names } }));
    assert.doesNotMatch(JSON.stringify(plan), /canary/);
    for (const name of Object.keys(names)) assert.ok(plan.text.includes(name), name);
    const notes = plan.notes.join('\n');
    for (const file of ['TEMPORAL_API_KEY_FILE', 'RATCHET_PAYLOAD_KEY_FILE']) assert.ok(notes.includes(file), file);
  }
});

test('it is written once, for its owner alone, and taken away again with what enabled it', (t) => {
  const plan = planService(optionsFor(t));
  assert.equal(uninstallService(plan), false);
  assert.equal(installService(plan), 'written');
  assert.equal(installService(plan), 'as it was');
  assert.equal(statSync(plan.file).mode & 0o077, 0);
  const enabled = join(dirname(plan.file), 'default.target.wants', `${plan.name}.service`);
  assert.equal(existsSync(enabled), false, 'nothing is enabled for you');
  mkdirSync(dirname(enabled));
  symlinkSync(plan.file, enabled);
  assert.equal(uninstallService(plan), true);
  assert.throws(() => readFileSync(plan.file));
  assert.equal(existsSync(dirname(enabled)) && existsSync(enabled), false);
});

test('two folders of the same name have services of their own', (t) => {
  assert.notEqual(planService(optionsFor(t)).file, planService(optionsFor(t)).file);
});

test('elsewhere, and for a folder whose name no unit can hold, it is refused with what to do', (t) => {
  assert.throws(
    () => planService(optionsFor(t, { hasSystemd: false })),
    /Linux without systemd.*\n.*dev --weights outputs/,
  );
  assert.throws(() => planService(optionsFor(t, { platform: 'win32' })), /this is win32/);
  const projectFolder = join(temporaryFolder(t), 'two\nlines');
  mkdirSync(projectFolder);
  assert.throws(() => planService(optionsFor(t, { projectFolder })), /control character/);
});

function stringAfter(plist: string, key: string): string {
  return unescape(new RegExp(`<key>${key}</key>\\s*<string>(.*?)</string>`).exec(plist)?.[1] ?? 'nothing');
}

function unescape(text: string): string {
  return text.replaceAll('&quot;', '"').replaceAll('&gt;', '>').replaceAll('&lt;', '<').replaceAll('&amp;', '&');
}
