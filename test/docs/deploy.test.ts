/** deploy/ is written in the words of Compose and systemd, and names programs and roles that Ratchet has. */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { parse } from 'yaml';
import { z } from 'zod';
import { exposedMetrics } from '../../backends/metrics/exposition.ts';
import { workerRoles } from '../../core/names.ts';
import { repositoryFolder } from '../e2e/small-run.ts';
import { definitionOf } from './metric-page.ts';

const folder = path.join(repositoryFolder, 'deploy');
const text = z.string().min(1);
const duration = z.string().regex(/^\d+(?:ms|s|m)$/);

/** The part of the Compose specification that the file uses; another key is an error. */
const Service = z.strictObject({
  image: text,
  build: z.strictObject({ context: text, dockerfile: text, target: text }).optional(),
  command: z.array(text).optional(),
  restart: z.enum(['no', 'always', 'on-failure', 'unless-stopped']),
  init: z.boolean().optional(),
  read_only: z.boolean().optional(),
  cap_drop: z.array(text).optional(),
  cap_add: z.array(text).optional(),
  security_opt: z.array(text).optional(),
  stop_grace_period: z
    .string()
    .regex(/^\d+s$/)
    .optional(),
  network_mode: text.optional(),
  environment: z.record(text, z.string()).optional(),
  ports: z.array(z.string().regex(/^127\.0\.0\.1:\d+:\d+$/)).optional(),
  // A volume by its name, a folder of the container's own, or one of the machine that is only read.
  volumes: z.array(z.string().regex(/^(?:(?:[a-z]+:)?\/[^:]+|\$\{\w+:-\.\.\/\w+\}:\/[^:]+:ro)$/)).optional(),
  depends_on: z.record(text, z.strictObject({ condition: z.enum(['service_started', 'service_healthy']) })).optional(),
  healthcheck: z
    .strictObject({
      test: z.tuple([z.enum(['CMD', 'CMD-SHELL'])]).rest(text),
      interval: duration,
      retries: z.int().positive(),
    })
    .optional(),
});
const Compose = z.strictObject({
  name: text,
  services: z.record(text, Service),
  volumes: z.record(text, z.null()),
});

function composeFile(source: string): z.infer<typeof Compose> {
  const all = z.record(z.string(), z.unknown()).parse(parse(source, { merge: true }));
  return Compose.parse(Object.fromEntries(Object.entries(all).filter(([key]) => !key.startsWith('x-'))));
}

const source = readFileSync(path.join(folder, 'compose.yaml'), 'utf8');

/** A tag that names one release, with or without its digest. */
const exactTag = /^[\w./-]+:\d+\.\d+(?:\.\d+)?(?:-[\w-]+)?(?:@sha256:[0-9a-f]{64})?$/;

test('the image is built from an exact release of Node that the package allows', () => {
  const dockerfile = readFileSync(path.join(folder, 'Dockerfile'), 'utf8');
  const image = /^ARG NODE_IMAGE=(.*)$/m.exec(dockerfile)?.[1];
  assert.ok(image && exactTag.test(image), image);
  assert.match(image, /^node:22\.\d+\.\d+-/);
  assert.match(dockerfile, /^FROM \$\{NODE_IMAGE\} AS ratchet$/m);
  assert.doesNotMatch('postgres:16', exactTag);
});

test('an image installs what the lock file says, without scripts of packages, and keeps secrets and folders of this machine out', () => {
  const dockerfile = readFileSync(path.join(folder, 'Dockerfile'), 'utf8');
  const copied = /^COPY (.*npm-shrinkwrap\.json.*) \.\/$/m.exec(dockerfile)![1]!.split(' ');
  for (const file of copied) assert.ok(existsSync(path.join(repositoryFolder, file)), file);
  assert.ok(copied.includes('.npmrc'), 'which says that no scripts of packages are run');
  assert.match(dockerfile, /^RUN npm ci /m);
  for (const [, lock] of dockerfile.matchAll(/--require-hashes -r (\S+)/g))
    assert.ok(existsSync(path.join(repositoryFolder, lock!)), lock);
  for (const stage of dockerfile.split(/^FROM /m).slice(1))
    assert.equal([...stage.matchAll(/^USER (.*)$/gm)].at(-1)?.[1], 'node', stage);
  const ignored = readFileSync(path.join(folder, 'Dockerfile.dockerignore'), 'utf8').split('\n');
  for (const pattern of ['**/node_modules', '**/.ratchet', '**/.env*', '**/*.key', '.git', 'outputs'])
    assert.ok(ignored.includes(pattern), pattern);
  const { files } = JSON.parse(readFileSync(path.join(repositoryFolder, 'package.json'), 'utf8')) as {
    files: string[];
  };
  for (const file of files) assert.ok(!ignored.includes(file), `${file} is part of the package`);
});

test('a container whose policy server reads copies of a store in S3 shares them with the workers', () => {
  const { services } = composeFile(source);
  for (const [name, { image, volumes = [] }] of Object.entries(services))
    if (image === 'ratchet') assert.ok(volumes.includes('cache:/home/node/.cache'), name);
  assert.ok(services['policy']?.command?.includes('/home/node/.cache/ratchet/s3-copies'));
  const unit = readFileSync(path.join(folder, 'systemd/ratchet-policy.service'), 'utf8');
  assert.match(unit, /^ExecStart=.* --allow-root \/var\/cache\/ratchet\/s3-copies$/m);
});

test('the compose file is one, listens on loopback alone, and what its services name is there', () => {
  const { services, volumes } = composeFile(source);
  for (const [name, service] of Object.entries(services)) {
    for (const [other, { condition }] of Object.entries(service.depends_on ?? {})) {
      assert.ok(services[other], `${name} depends on ${other}`);
      if (condition === 'service_healthy') assert.ok(services[other].healthcheck, `${other} says when it is healthy`);
    }
    const shared = service.network_mode?.replace('service:', '');
    if (shared !== undefined) assert.ok(services[shared] && !service.ports, `${name} shares the network of ${shared}`);
    for (const volume of (service.volumes ?? []).filter((one) => !one.startsWith('/') && !one.endsWith(':ro')))
      assert.ok(Object.hasOwn(volumes, volume.split(':')[0]!), `${name}: ${volume}`);
    assert.deepEqual([service.cap_drop, service.security_opt], [['ALL'], ['no-new-privileges:true']], name);
    if (service.image === 'ratchet') assert.equal(service.read_only, true, name);
    // `ratchet train` writes there what it was asked to reach, such as a bucket; nothing else of /ratchet can be written.
    if (service.image === 'ratchet') assert.ok(service.volumes?.includes('/ratchet/.ratchet'), name);
    if (service.image !== 'ratchet') assert.match(service.image, exactTag, `${name} has a version`);
    const [program] = service.command ?? [];
    if (program !== undefined) assert.ok(existsSync(path.join(repositoryFolder, program)), program);
  }
  const isPublished = (port: string): boolean =>
    Object.values(services).some(({ ports = [] }) => ports.some((one) => one.endsWith(`:${port}`)));
  assert.ok(isPublished('8080'), "Temporal's UI");
  assert.ok(isPublished('9464') && services['metrics']?.environment?.['RATCHET_METRICS_HOST'], '/metrics');
  assert.ok(
    services['orchestrator']?.volumes?.some((one) => one.endsWith('/ratchet/configs:ro')),
    'run files',
  );
  const roles = Object.values(services).flatMap(({ command = [] }) =>
    command.includes('worker') ? command.slice(-1) : [],
  );
  assert.deepEqual(roles.sort(), [...workerRoles, 'metrics'].sort());
  const dockerfile = services['policy']?.build?.dockerfile;
  assert.ok(dockerfile && existsSync(path.join(repositoryFolder, dockerfile)));
});

test('a key that Compose does not have, and a port for everybody, are noticed', () => {
  assert.throws(() => composeFile(source.replace('restart:', 'restarts:')), /restarts/);
  assert.throws(() => composeFile(source.replace('127.0.0.1:7233:7233', '7233:7233')), /ports/);
});

const units = readdirSync(path.join(folder, 'systemd')).filter((name) => name.endsWith('.service'));

/** Settings of the units that systemd.unit(5), systemd.service(5) and systemd.exec(5) define. */
const settings: Readonly<Record<string, readonly string[]>> = {
  Unit: ['Description', 'After', 'Wants', 'StartLimitIntervalSec'],
  Service:
    'Type User WorkingDirectory Environment EnvironmentFile ExecStart Restart RestartSec TimeoutStopSec LimitNOFILE UMask NoNewPrivileges ProtectSystem ProtectHome ReadWritePaths CacheDirectory CacheDirectoryMode PrivateTmp CapabilityBoundingSet ProtectKernelModules ProtectClock ProtectHostname RestrictSUIDSGID RestrictRealtime LockPersonality SystemCallArchitectures RestrictAddressFamilies ProtectKernelTunables ProtectKernelLogs ProtectControlGroups RestrictNamespaces'.split(
      ' ',
    ),
  Install: ['WantedBy'],
};

/** Lines that are no setting of their section. */
function strangeLines(unit: string): string[] {
  let section = '';
  return unit.split('\n').filter((line) => {
    if (line === '' || line.startsWith('#')) return false;
    const header = /^\[(\w+)\]$/.exec(line)?.[1];
    if (header !== undefined) section = header;
    if (header !== undefined) return settings[header] === undefined;
    return !(settings[section] ?? []).includes(line.split('=', 1)[0]!) || !line.includes('=');
  });
}

for (const name of units) {
  test(`${name} has settings of systemd in their sections, and starts a program of ours`, () => {
    const unit = readFileSync(path.join(folder, 'systemd', name), 'utf8');
    assert.deepEqual(strangeLines(unit), []);
    assert.notDeepEqual(strangeLines(unit.replace('Restart=', 'Restarts=')), []);
    const command = /^ExecStart=(.*)$/m.exec(unit)![1]!.split(' ');
    const [node, program] = command;
    assert.equal(node, '/usr/bin/node');
    assert.match(program!, /^(?:cli|workers)\/[\w-]+\.mjs$/, 'what runs the programs as built');
    assert.ok(existsSync(path.join(repositoryFolder, program!)), program);
    for (const kept of [
      'NoNewPrivileges=true',
      'ProtectSystem=strict',
      'CapabilityBoundingSet=',
      'PrivateTmp=true',
      'UMask=0077',
    ])
      assert.ok(unit.includes(`\n${kept}\n`), kept);
  });
}

for (const document of ['deploy/README.md', 'docs/guide/several-machines.md']) {
  test(`the recipe of ${document} enables all that a run waits for, by units that are there`, () => {
    const said = readFileSync(path.join(repositoryFolder, document), 'utf8');
    const enabled = /systemctl enable --now (.+)/.exec(said)![1]!.split(' ');
    for (const unit of enabled) {
      const [template, role] = unit.split('@');
      const file = role === undefined ? `${template}.service` : `${template}@.service`;
      assert.ok(units.includes(file), file);
    }
    const started = enabled.flatMap((unit) => /^ratchet-worker@(.+)$/.exec(unit)?.[1] ?? []);
    assert.deepEqual(started.toSorted(), workerRoles.toSorted(), 'a run needs each role');
    assert.ok(enabled.includes('ratchet-policy'));
  });
}

test('systemd itself finds nothing wrong with the units', { skip: !hasSystemd() }, () => {
  const files = units.map((name) => path.join(folder, 'systemd', name));
  const { stderr } = spawnSync('systemd-analyze', ['verify', ...files], { encoding: 'utf8' });
  // A machine without our user or programs is not what is asked about.
  assert.doesNotMatch(stderr, /Unknown (?:key|section|lvalue)|Failed to parse|Invalid/i);
});

function hasSystemd(): boolean {
  try {
    execFileSync('systemd-analyze', ['--version'], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}

interface Panel {
  readonly title: string;
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number };
  readonly targets: readonly { readonly expr: string }[];
}

for (const name of readdirSync(path.join(folder, 'grafana'))) {
  test(`Grafana’s dashboard ${name} asks for metrics that are served, and its panels do not overlap`, () => {
    const { panels } = JSON.parse(readFileSync(path.join(folder, 'grafana', name), 'utf8')) as { panels: Panel[] };
    const cells = new Set<string>();
    for (const { title, gridPos, targets } of panels) {
      for (const { expr } of targets) {
        const asked = [...expr.matchAll(/\b(ratchet_\w+)(?:\{([^}]*)\})?/g)];
        assert.ok(asked.length > 0, `${title}: ${expr}`);
        for (const [, metric = '', labels = ''] of asked) {
          assert(metric in exposedMetrics, `${title}: ${expr}`);
          const figure = /\bname="([^"]+)"/.exec(labels)?.[1];
          const written = metric === 'ratchet_eval' ? `eval/words/${figure}` : figure;
          if (written !== undefined) assert(definitionOf(written, ['words']), `${title}: ${expr}`);
          assert.equal(written !== undefined, metric === 'ratchet_eval' || metric === 'ratchet_figure', expr);
        }
      }
      for (let x = gridPos.x; x < gridPos.x + gridPos.w; x++) {
        for (let y = gridPos.y; y < gridPos.y + gridPos.h; y++) {
          assert(x < 24 && !cells.has(`${x} ${y}`), `${title} lies on another`);
          cells.add(`${x} ${y}`);
        }
      }
    }
    assert(panels.length > 8);
  });
}
