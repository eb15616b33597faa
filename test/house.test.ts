/** The house: which room may know of which. Changing the house means changing this table, and ARCHITECTURE.md with it. */
import assert from 'node:assert/strict';
import { execFile, execFileSync } from 'node:child_process';
import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import path from 'node:path';
import { describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { type Expression, parseSync, type Program, type Span, Visitor } from 'oxc-parser';

/** Target of a dynamic import whose name is not a literal. */
const computed = 'a computed name';

interface Room {
  /** Folders or files that may be imported from, beside its own room. */
  readonly rooms: readonly string[];
  /** Further ones that types alone may be imported from. */
  readonly types?: readonly string[];
  /** Packages, `node:` for what comes with Node. A star stands for any name. */
  readonly packages: readonly string[];
  /** Exceptions by file or folder, each with packages or rooms of its own. */
  readonly also?: Readonly<Record<string, readonly string[]>>;
}

const house: Readonly<Record<string, Room>> = {
  core: { rooms: [], packages: ['zod'], also: { 'core/gepa/text-diff.ts': ['diff'] } },
  config: { rooms: ['core'], packages: ['zod', 'smol-toml'] },
  // This machine, and what leaves it: files, owners, grants, secrets, requests.
  host: {
    rooms: ['core'],
    packages: ['node:*'],
    also: { 'host/hide-secrets.ts': ['koffi'] },
  },
  engine: {
    rooms: ['core', 'host'],
    packages: ['node:*', '@huggingface/*', 'zod'],
    // onnxruntime-node's library is called, its own binding never loaded.
    also: {
      'engine/train/user-code.ts': [computed],
      'engine/read-typescript.ts': ['tsx/cjs/api', 'tsx/esm/api'],
      'engine/onnx/c-api.ts': ['koffi'],
      'engine/onnx/protobuf.ts': ['@bufbuild/protobuf/wire'],
      'engine/sample/lane-worker-source.mjs': ['tsx/esm/api'],
    },
  },
  store: { rooms: ['core', 'host'], packages: ['node:*', 'zod', '@aws-sdk/client-s3', 'p-queue'] },
  // The records in a run's folder: nothing else makes or reads a key of it.
  runs: { rooms: ['core', 'config', 'host', 'store'], packages: ['node:*', 'zod', 'p-queue'] },
  backends: {
    rooms: ['core', 'config', 'host', 'engine', 'store'],
    packages: ['node:*', 'zod', 'openai'],
    also: {
      'backends/environments/load.ts': [computed],
      'backends/environments/judge.ts': ['p-queue'],
      'backends/inference/tinker.ts': ['p-queue'],
      'backends/tinker/proto.ts': ['@bufbuild/protobuf/wire'],
      'backends/environments/python': ['p-queue'],
      'backends/hub/dataset-card.ts': ['yaml'],
      'backends/rows/parquet-lines.ts': ['hyparquet'],
      'backends/prime-rl/settings-file.ts': ['smol-toml'],
    },
  },
  // Generating, scoring, evaluating, searching.
  play: {
    rooms: ['core', 'config', 'host', 'engine', 'store', 'runs', 'backends'],
    packages: ['node:*', 'p-queue'],
    also: { 'play/table.ts': ['hyparquet-writer'] },
  },
  // Training, replaying, publishing, correcting.
  learn: {
    rooms: ['core', 'config', 'host', 'engine', 'store', 'runs', 'backends'],
    types: ['load'],
    packages: ['node:*'],
  },
  // A run file with all that it names.
  load: {
    rooms: ['core', 'config', 'host', 'engine', 'store', 'runs', 'backends', 'play'],
    packages: ['node:*', 'zod'],
  },
  environments: {
    rooms: ['core', 'backends/environments'],
    packages: ['node:*', 'zod'],
    also: { 'environments/wiki-search': ['minisearch'] },
  },
  activities: {
    rooms: ['core', 'config', 'host', 'engine', 'store', 'runs', 'backends', 'play', 'learn', 'load'],
    packages: ['node:*', '@temporalio/activity', '@temporalio/common', 'p-queue'],
  },
  // Its code goes through Temporal's bundler: nothing that is not deterministic, and no schemas (two thirds more bundle).
  workflows: {
    rooms: ['core', 'runs/layout.ts', 'runs/evaluations/online-evaluation.ts'],
    types: ['config', 'activities'],
    packages: ['@temporalio/workflow', '@temporalio/common'],
  },
  workers: {
    rooms: ['core', 'config', 'host', 'engine', 'store', 'runs', 'backends', 'play', 'learn', 'load', 'activities'],
    types: ['workflows'],
    packages: ['node:*', '@temporalio/worker', '@temporalio/client', '@temporalio/common', '@temporalio/proto', 'zod'],
    also: {
      'workers/program/workflow-bundle.ts': ['esbuild'],
      'workers/built.mjs': ['esbuild'],
      'workers/program/temporal-packages.mjs': ['esbuild'],
      'workers/program.mjs': [computed, 'tsx/esm/api'],
    },
  },
  // What programs of users import; no engine.
  client: {
    rooms: ['core', 'config', 'host', 'store', 'runs', 'workers'],
    types: ['workflows'],
    packages: ['node:*', '@temporalio/client', '@temporalio/common'],
    also: { 'client/index.mjs': [computed, 'tsx/esm/api'], 'client/start-run.ts': ['smol-toml'] },
  },
  // The page of a run: a server on this machine, and the browser's code, which has a test of its own.
  ui: {
    rooms: ['core', 'config', 'host', 'engine', 'store', 'runs', 'backends', 'play/policy', 'load'],
    types: ['workflows'],
    packages: ['node:*'],
    also: { 'ui/page-files.ts': ['esbuild'], 'ui/page': ['preact', 'uplot'] },
  },
  cli: {
    rooms: ['core', 'config', 'host', 'engine', 'store', 'runs', 'backends', 'play', 'learn', 'load', 'activities', 'workers', 'ui'], // prettier-ignore
    types: ['workflows'],
    packages: [
      'node:*',
      '@commander-js/extra-typings',
      '@temporalio/client',
      '@temporalio/common',
      '@temporalio/proto',
    ],
    also: {
      'cli/ratchet.mjs': [computed, 'tsx/esm/api'],
      'cli/output/ndjson.ts': ['zod'],
      'cli/view': ['log-update', 'slice-ansi', 'string-width'],
    },
  },
  // Run files, and code of the user's that a run file names.
  configs: {
    rooms: [],
    types: ['engine/index.ts'],
    packages: ['ratchet-rl/environments'],
    also: { 'configs/own-engine': ['node:*'] },
  },
  // Programs for another interpreter.
  python: { rooms: [], packages: [] },
  // Runs before any package is there.
  setup: { rooms: [], packages: ['node:*'], also: { 'setup/pack.mjs': [computed] } },
};

/** Files that send something by themselves, and why that does not pass the door (`host/ask-server.ts`), which asks what was granted. */
const ownRequests: Readonly<Record<string, string>> = {
  'host/ask-server.ts': 'the door',
  'engine/server/main.ts': 'a policy server asks itself',
  'backends/environments/judge.ts': "openai's client is given the door in place of its own",
  'backends/sandboxes/docker/engine-client.ts':
    'a Unix socket of this machine that the run file names, or the usual one of Docker or Podman',
  'backends/torch/group.ts': 'a socket in a folder of this user, to a process that it has started',
  'backends/torch/node-group.ts': 'a socket in a folder of this user, to a process that it has started',
  'backends/nodes/trainer-node.ts':
    'connects to the first node of a trainer, which whoever typed it named and which has the same secret',
  'store/s3-requests.ts': "AWS's client, of a bucket that was granted with its server (`lineOfStore`)",
  'workers/stack/held-lock.ts': 'a socket in a folder of this user',
  'workers/cloud-notice.mjs':
    'a program of its own, which asks the machine’s metadata service whether the machine ends',
  'workers/stack/ports.ts': 'looks whether a port of this machine is taken, and sends nothing',
  'workers/stack/supervised-process.ts': 'asks a process that it has started whether it is ready',
  'workers/temporal/temporal-cli-download.ts':
    'fetches a release of Temporal, without a key, from the address that it has',
  'workers/temporal/temporal-connection.ts':
    'reaches Temporal, or finds out why it does not, at the address of this user',
  'workers/temporal/ui-front.ts': 'passes on what a browser asks of the UI of our own Temporal server',
  'cli/doctor/services.ts': 'looks for services on behalf of whoever typed it, without a key',
};

/** Measurements and tests look at everything. */
const freeRooms: readonly string[] = ['bench', 'test'];

const root = fileURLToPath(new URL('../', import.meta.url));
const allFiles = listFiles();
const sources = allFiles.filter((file) => /\.(ts|tsx|mts|mjs)$/.test(file) && file.includes('/'));
const textFiles = allFiles.filter((file) => !/\.(png|gif|svg|onnx|safetensors|gz|db)$/.test(file));

describe('the house', () => {
  test('every room that holds code is in the table', () => {
    const rooms = new Set(sources.map(roomOf).filter((room) => !room.startsWith('.')));
    const unknown = [...rooms].filter((room) => !(room in house) && !freeRooms.includes(room));
    assert.deepEqual(unknown, [], 'rooms without a line in the table');
  });

  test('ARCHITECTURE.md draws the same house', { skip: !existsSync(path.join(root, 'ARCHITECTURE.md')) }, () => {
    const drawn = roomsOfFirstTable(readFileSync(path.join(root, 'ARCHITECTURE.md'), 'utf8')).sort();
    const built = [...Object.keys(house), ...freeRooms].filter((room) =>
      allFiles.some((file) => roomOf(file) === room && /\.(ts|mts|mjs|py)$/.test(file)),
    );
    assert.deepEqual(drawn, built.sort());
  });

  for (const [name, room] of Object.entries(house)) {
    test(`${name} imports values only from ${[...room.rooms, ...room.packages].join(', ')}`, () => {
      const broken = sources
        .filter((file) => roomOf(file) === name)
        .flatMap((file) =>
          valueImports(file)
            .filter(({ what }) => !mayImport(file, room, what))
            .map(({ what, line }) => `${file}:${line} imports ${what}`),
        );
      assert.deepEqual(broken, []);
    });
  }

  for (const [name, room] of Object.entries(house)) {
    const rooms = [...room.rooms, ...(room.types ?? [])];
    test(`${name} imports types only from ${rooms.length === 0 ? 'itself' : rooms.join(', ')}`, () => {
      const broken = sources
        .filter((file) => roomOf(file) === name)
        .flatMap((file) =>
          typeImports(file)
            .filter(({ what }) => !mayTakeType(file, room, what))
            .map(({ what, line }) => `${file}:${line} imports ${what}`),
        );
      assert.deepEqual(broken, []);
    });
  }

  test('no two rooms import from one another, types included', () => {
    const arrows = new Set(
      sources.flatMap((file) =>
        [...valueImports(file), ...typeImports(file)]
          .filter(({ what }) => what.includes('/') && roomOf(what) in house && roomOf(what) !== roomOf(file))
          .map(({ what }) => `${roomOf(file)} → ${roomOf(what)}`),
      ),
    );
    const bothWays = [...arrows].filter((arrow) => arrows.has(arrow.split(' → ').toReversed().join(' → ')));
    assert.deepEqual(bothWays, []);
  });

  test('a workflow imports everything at its top: a dynamic import is not deterministic', () => {
    const dynamic = sources
      .filter((file) => roomOf(file) === 'workflows')
      .flatMap((file) =>
        valueImports(file)
          .filter(({ isDynamic }) => isDynamic)
          .map(({ line }) => `${file}:${line}`),
      );
    assert.deepEqual(dynamic, []);
  });

  test('the code of the page runs in a browser: it imports nothing but its own, what is pure, and its packages', () => {
    const foreign = sources
      .filter((file) => file.startsWith('ui/page/'))
      .flatMap((file) =>
        valueImports(file)
          .filter(({ what }) => !/^(ui\/page\/|core\/|ui\/answers\.ts$|preact(\/|$)|uplot(\/|$))/.test(what))
          .map(({ what, line }) => `${file}:${line} imports ${what}`),
      );
    assert.deepEqual(foreign, []);
  });

  test('a file in activities/ registers an activity, or stands in around/ and is there for all of them', () => {
    const ofWorkers = valueImports('activities/index.ts').map(({ what }) => what);
    const registered = new Set([
      ...ofWorkers,
      ...ofWorkers.flatMap((file) => valueImports(file).map(({ what }) => what)),
    ]);
    const others = sources.filter(
      (file) =>
        roomOf(file) === 'activities' &&
        !file.startsWith('activities/around/') &&
        file !== 'activities/index.ts' &&
        !registered.has(file),
    );
    assert.deepEqual(others, [], 'move it to the room that it belongs to');
  });

  test('the table catches what it is there for', () => {
    const judge = (file: string, what: string) => mayImport(file, house[roomOf(file)]!, what);
    assert(!judge('core/rl/learning/pack.ts', 'node:fs'));
    assert(!judge('core/rl/learning/pack.ts', 'smol-toml'));
    assert(judge('config/toml/overrides.ts', 'smol-toml'));
    assert(!judge('core/rl/learning/pack.ts', 'engine/index.ts'));
    assert(!judge('store/index.ts', '@temporalio/common'));
    assert(!judge('activities/around/failures.ts', '@temporalio/worker'));
    assert(!judge('workflows/train-run.ts', 'config/run-spec.ts'));
    assert(judge('workflows/train-run.ts', 'core/limits.ts'));
    assert(!judge('workflows/train-run.ts', 'activities/index.ts'));
    assert(!judge('workers/roles/worker.ts', 'workflows/index.ts'));
    assert(!judge('setup/start.mjs', 'core/names.ts'));
    assert(judge('environments/reverse-text/index.ts', 'backends/environments/kit.ts'));
    assert(!judge('environments/reverse-text/index.ts', 'store/index.ts'));
    assert(!judge('engine/index.ts', 'enginefoo/index.ts'));
    const judgeType = (file: string, what: string) => mayTakeType(file, house[roomOf(file)]!, what);
    assert(judgeType('workflows/train-run.ts', 'config/run-spec.ts'));
    assert(!judgeType('core/rl/learning/pack.ts', 'config/run-spec.ts'));
    assert(!judgeType('runs/metrics/curves.ts', 'workflows/control/messages.ts'));
    assert(!judgeType('runs/run-access.ts', 'backends/inference/index.ts'));
    assert(!judgeType('backends/webhook.ts', 'runs/metrics/notices.ts'));
  });

  test('imports are found in every way they are written', () => {
    const text = [
      "import a from 'a';",
      "import type { B } from 'b';",
      "import { type C } from 'c';", // stays an import when types are erased one file at a time
      "import 'd';",
      "export { e } from 'e';",
      "export type { F } from 'f';",
      "export * from 'g';",
      "const h = await import('h');",
      "type I = import('i').I;",
      "const j = await import(new URL('j', import.meta.url).href);",
    ].join('\n');
    const { values, types } = importsOf('core/x.ts', text);
    const found = values.map(({ what, line, isDynamic }) => [what, line, isDynamic]);
    assert.deepEqual(found, [
      ['a', 1, false],
      ['c', 3, false],
      ['d', 4, false],
      ['e', 5, false],
      ['g', 7, false],
      ['h', 8, true],
      ['a computed name', 10, true],
    ]);
    const ofTypes = types.map(({ what, line }) => [what, line]);
    assert.deepEqual(ofTypes, [
      ['b', 2],
      ['f', 6],
      ['i', 9],
    ]);
  });
});

describe('requests leave through one door', () => {
  const isOfBrowser = (file: string) => file.startsWith('ui/page/');
  const inside = sources.filter((file) => roomOf(file) in house && !isOfBrowser(file));

  test('no other file sends anything by itself', () => {
    const found = inside.flatMap((file) => sendersIn(file, textOf(file)).map((sender) => `${file}: ${sender}`));
    const unnamed = found.filter((line) => ownRequests[line.split(':', 1)[0]!] === undefined);
    assert.deepEqual(unnamed, [], 'ask through host/ask-server.ts, which refuses what nobody granted');
  });

  test('every exception is one', () => {
    const senders = inside.filter((file) => sendersIn(file, textOf(file)).length > 0);
    assert.deepEqual(senders.sort(), Object.keys(ownRequests).sort());
  });

  test('what sends is found however it is written', () => {
    const sending = [
      "await fetch('http://x');",
      'const send = globalThis.fetch;',
      "globalThis['fetch']('http://x');",
      'open({ fetch });',
      "new WebSocket('ws://x');",
      "import { request } from 'node:http';",
      "import { get as take } from 'https';",
      "import * as http from 'node:http';",
      "import http2 from 'node:http2';",
      "import { connect } from 'node:net';",
      "import { Socket } from 'node:net';",
      "import { connect as secure } from 'node:tls';",
      "export { request } from 'node:https';",
      "import { createSocket } from 'node:dgram';",
      "import OpenAI from 'openai';",
      "const sdk = await import('@aws-sdk/client-s3');",
      "const { request } = await import('node:https');",
      "const http = require('node:http');",
      "import { Client } from 'undici';",
    ];
    for (const text of sending) assert.equal(sendersIn('workers/x.ts', text).length, 1, text);
    const other = [
      "import { createServer, type IncomingMessage, STATUS_CODES } from 'node:http';",
      "import type { ClientRequest } from 'node:http';",
      "import { Agent } from 'node:https';",
      "import { createServer, isIP, BlockList } from 'node:net';",
      'queue.fetch(); const options = { fetch: send }; class A { fetch() {} }',
      "import type OpenAI from 'openai';",
    ];
    for (const text of other) assert.deepEqual(sendersIn('workers/x.ts', text), [], text);
  });
});

describe('the style of the house', () => {
  test('every file is named after what it holds: none is called utils', () => {
    const vague = allFiles.filter((file) => /^(utils?|helpers?|misc|common|shared)\.[a-z]+$/.test(path.basename(file)));
    assert.deepEqual(vague, []);
  });

  test('file names are kebab-case', () => {
    const names = sources.filter(
      (file) =>
        !/^[a-z0-9-]+(\.(test|e2e\.test|slow\.test|faults\.test|engines\.test|contract|d))?\.(ts|tsx|mts|mjs)$/.test(
          path.basename(file),
        ),
    );
    assert.deepEqual(names, []);
  });

  test('nothing is of type any', () => {
    const found = sources.flatMap((file) => {
      const text = textOf(file);
      const places: string[] = [];
      const visitor = new Visitor({ TSAnyKeyword: (node) => void places.push(`${file}:${lineOf(text, node)}`) });
      visitor.visit(parse(file, text));
      return places;
    });
    assert.deepEqual(found, []);
  });
});

describe('marks of a merge conflict', () => {
  test('no file holds one', () => {
    const found = textFiles.flatMap((file) => conflictMarks(textOf(file)).map(({ line, mark }) => `${file}:${line} ${mark}`)); // prettier-ignore
    assert.deepEqual(found, [], 'resolve the conflict, and look what a formatter made of the lines beside it');
  });

  test('one is found as git writes it, and as a formatter of Markdown leaves it', () => {
    const marks = [
      '<<<<<<< HEAD',
      '||||||| 67773356',
      '=======',
      '>>>>>>> wt-adv',
      '  <<<<<<< HEAD',
      '  \\=======',
      '> > > > > > > wt-adv',
      '\\<<<<<<< HEAD',
      '=======\r',
    ];
    for (const mark of marks)
      assert.deepEqual(conflictMarks(`a\n${mark}\nb\n`), [{ line: 2, mark: mark.trim() }], mark);
    const others = ['========', 'a = b <<<<<<< c', '> > a quote of a quote', '"=======",', '<<<<<<<<', '| a | b |'];
    for (const other of others) assert.deepEqual(conflictMarks(other), [], other);
  });
});

describe('the house can be built anywhere', () => {
  const texts = textFiles.filter((file) => file !== 'test/house.test.ts');

  test('no file names a package registry or a proxy: that is the choice of whoever installs', () => {
    const registry =
      /\b(registry\.[a-z0-9-]+\.[a-z]+|npm\.pkg\.github|artifactory|nexus\.|verdaccio|pypi\.org\/simple|proxy\.golang\.org|GOPROXY=http)/i;
    const found = texts.filter((file) => registry.test(textOf(file)) || /"resolved": "http/.test(textOf(file)));
    assert.deepEqual(found, []);
  });

  test('no file names a place of the machine it was written on', () => {
    const home = userInfo().homedir;
    const places = [root.replace(/\/$/, ''), ...(home.length > 1 ? [home] : [])];
    const isOnOneMachine = (text: string) =>
      places.some((place) => new RegExp(`(^|[^\\w.~-])${place.replaceAll(/[.+]/g, '\\$&')}(/|\\b)`, 'm').test(text));
    assert.deepEqual(
      texts.filter((file) => isOnOneMachine(textOf(file))),
      [],
    );
  });
});

describe('an activity call that nobody awaits is a step that may never happen', () => {
  const workflow = (statement: string) => (folder: string) =>
    `
import { proxyActivities } from '@temporalio/workflow';
import type { OrchestratorActivities } from '${path.relative(folder, path.join(root, 'activities/index.ts'))}';
const orchestrator = proxyActivities<OrchestratorActivities>({ startToCloseTimeout: '1m' });
export async function run(input: Parameters<OrchestratorActivities['broadcastWeights']>[0]): Promise<void> {
  await orchestrator.broadcastWeights(input);
  ${statement}
}
`;

  test('the linter finds it', async () => {
    const found = await lint(workflow('orchestrator.broadcastWeights(input);'));
    assert.match(found, /no-floating-promises/);
    assert.match(found, /workflow\.ts:7:/);
  });

  test('the linter finds it when its options are given with the call', async () => {
    const found = await lint(workflow("orchestrator.broadcastWeights.executeWithOptions({ summary: 'x' }, [input]);"));
    assert.match(found, /no-floating-promises/);
  });

  test('awaited, or started on purpose, it is fine', async () => {
    assert.equal(await lint(workflow('await orchestrator.broadcastWeights(input);')), '');
    assert.equal(await lint(workflow('void orchestrator.broadcastWeights(input);')), '');
  });
});

/** Findings of the project's own linter on one workflow file; '' without any. */
async function lint(textIn: (folder: string) => string): Promise<string> {
  const folder = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-lint-')));
  try {
    symlinkSync(path.join(root, 'node_modules'), path.join(folder, 'node_modules'));
    writeFileSync(path.join(folder, '.oxlintrc.json'), readFileSync(path.join(root, '.oxlintrc.json')));
    const options = { noEmit: true, rootDir: '/' };
    const config = { extends: path.join(root, 'tsconfig.json'), compilerOptions: options, include: ['*.ts'] };
    writeFileSync(path.join(folder, 'tsconfig.json'), JSON.stringify(config));
    writeFileSync(path.join(folder, 'workflow.ts'), textIn(folder));
    const linter = path.join(root, 'node_modules/.bin/oxlint');
    return await new Promise((resolve, reject) => {
      execFile(linter, ['--type-aware', '--format=unix', 'workflow.ts'], { cwd: folder }, (error, stdout, stderr) => {
        if (!error) resolve('');
        else if (stdout.includes('workflow.ts')) resolve(stdout);
        else reject(new Error(`The linter did not run: ${stdout}${stderr}`, { cause: error }));
      });
    });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function mayImport(file: string, room: Room, what: string): boolean {
  const name = roomOf(file);
  if (isBelow(name)(what)) return true;
  const also = Object.entries(room.also ?? {}).flatMap(([place, packages]) => (isBelow(place)(file) ? packages : []));
  if ([...room.packages, ...also].some((pattern) => matches(pattern, what))) return true;
  return room.rooms.some((place) => isBelow(place)(what));
}

function mayTakeType(file: string, room: Room, what: string): boolean {
  return [roomOf(file), ...room.rooms, ...(room.types ?? [])].some((place) => isBelow(place)(what));
}

function isBelow(place: string): (name: string) => boolean {
  return (name) => name === place || name.startsWith(`${place}/`);
}

/** `node:*` any module of Node, `@owner/*` any package of an owner, else a package and what lies in it. */
function matches(pattern: string, what: string): boolean {
  return pattern.endsWith('*')
    ? what.startsWith(pattern.slice(0, -1))
    : what === pattern || what.startsWith(`${pattern}/`);
}

interface Import {
  /** A file relative to the project, or a package as it is written. */
  readonly what: string;
  readonly line: number;
  readonly isDynamic: boolean;
}

const known = new Map<string, { readonly values: Import[]; readonly types: Import[] }>();

function importsIn(file: string): { readonly values: Import[]; readonly types: Import[] } {
  const found = known.get(file) ?? importsOf(file, textOf(file));
  known.set(file, found);
  return found;
}

function valueImports(file: string): Import[] {
  return importsIn(file).values;
}

/** Imports of this project's own files; which types a package has is its own business. */
function typeImports(file: string): Import[] {
  return importsIn(file).types.filter(({ what }) => /\.(?:ts|tsx|mts|mjs)$/.test(what));
}

function importsOf(file: string, text: string): { readonly values: Import[]; readonly types: Import[] } {
  const values: Import[] = [];
  const types: Import[] = [];
  const add = (to: Import[], node: Span, specifier: Expression | undefined, isDynamic = false): void => {
    const written = specifier === undefined ? null : stringOf(specifier);
    const what =
      written === null
        ? computed
        : written.startsWith('.')
          ? path.posix.join(path.posix.dirname(file), written)
          : written;
    to.push({ what, line: lineOf(text, node), isDynamic });
  };
  new Visitor({
    ImportDeclaration(node) {
      add(node.importKind === 'type' ? types : values, node, node.source);
    },
    ExportNamedDeclaration(node) {
      if (node.source) add(node.exportKind === 'type' ? types : values, node, node.source);
    },
    ExportAllDeclaration(node) {
      add(node.exportKind === 'type' ? types : values, node, node.source);
    },
    TSImportType(node) {
      add(types, node, node.source);
    },
    ImportExpression(node) {
      add(values, node, node.source, true);
    },
    CallExpression(node) {
      const [first] = node.arguments;
      const isRequire = node.callee.type === 'Identifier' && node.callee.name === 'require';
      if (isRequire && first && first.type !== 'SpreadElement' && stringOf(first) !== null)
        add(values, node, first, true);
    },
  }).visit(parse(file, text));
  return { values, types };
}

/** Exports of Node's modules that send nothing by themselves. */
const quietExports = /^(?:createServer|Agent|STATUS_CODES|METHODS|isIP|isIPv4|isIPv6|BlockList|Server)$/;
const nodeSenders = /^(?:node:)?(?:http|https|http2|net|tls|dgram)$/;
const packagedSenders = /^(?:openai|@aws-sdk\/.*|undici|node-fetch|axios|got|ws)(?:\/.*)?$/;
const globalSenders = new Set(['fetch', 'WebSocket', 'EventSource', 'XMLHttpRequest']);

/** Calls in a file that can send a request. Temporal's own clients are exempt: their server is this user's. */
function sendersIn(file: string, text: string): string[] {
  const found: string[] = [];
  const names = new Set<Span>();
  const mentions: (Span & { readonly name: string })[] = [];
  const name = (node: Span, isComputed: boolean): void => void (isComputed || names.add(node));
  const imported = (what: string | null, exports: readonly (string | null)[]): void => {
    if (what === null) return;
    if (packagedSenders.test(what)) found.push(what);
    else if (nodeSenders.test(what))
      found.push(...exports.flatMap((one) => (one !== null && quietExports.test(one) ? [] : [`${what} ${one}`])));
  };
  const exported = (node: { readonly name?: string; readonly value?: unknown }): string =>
    node.name ?? String(node.value);
  new Visitor({
    ImportDeclaration(node) {
      const specifiers = node.specifiers.filter((one) => one.type !== 'ImportSpecifier' || one.importKind !== 'type');
      if (node.importKind === 'type' || (specifiers.length === 0 && node.specifiers.length > 0)) return;
      const exports = specifiers.map((one) => (one.type === 'ImportSpecifier' ? exported(one.imported) : null));
      for (const one of node.specifiers) if (one.type === 'ImportSpecifier') names.add(one.imported);
      imported(node.source.value, exports);
    },
    ExportNamedDeclaration(node) {
      if (!node.source || node.exportKind === 'type') return;
      imported(node.source.value, node.specifiers.map(({ local }) => exported(local))); // prettier-ignore
    },
    ExportAllDeclaration(node) {
      if (node.exportKind !== 'type') imported(node.source.value, [null]);
    },
    ImportExpression(node) {
      imported(stringOf(node.source), [null]);
    },
    CallExpression(node) {
      const [first] = node.arguments;
      const isRequire = node.callee.type === 'Identifier' && node.callee.name === 'require';
      if (isRequire && first && first.type !== 'SpreadElement') imported(stringOf(first), [null]);
    },
    MemberExpression(node) {
      const isOfGlobal = node.object.type === 'Identifier' && /^(?:globalThis|global)$/.test(node.object.name);
      const property = node.property.type === 'Identifier' ? node.property.name : node.property.type === 'Literal' ? node.property.value : null; // prettier-ignore
      if (isOfGlobal && globalSenders.has(String(property))) found.push(`globalThis.${String(property)}`);
      name(node.property, node.computed);
    },
    Property(node) {
      // In `{ fetch }` it is also the value.
      if (!node.shorthand) name(node.key, node.computed);
    },
    MethodDefinition(node) {
      name(node.key, node.computed);
    },
    PropertyDefinition(node) {
      name(node.key, node.computed);
    },
    TSPropertySignature(node) {
      name(node.key, node.computed);
    },
    TSMethodSignature(node) {
      name(node.key, node.computed);
    },
    Identifier(node) {
      if (globalSenders.has(node.name)) mentions.push(node);
    },
  }).visit(parse(file, text));
  const places = new Set([...names].map(({ start }) => start));
  return [
    ...found,
    ...new Map(mentions.filter(({ start }) => !places.has(start)).map((one) => [one.start, one.name])).values(),
  ];
}

/** Value of a string literal, or of a template without values; null for all else. */
function stringOf(node: Expression): string | null {
  if (node.type === 'Literal' && typeof node.value === 'string') return node.value;
  if (node.type === 'TemplateLiteral' && node.expressions.length === 0) return node.quasis[0]!.value.cooked;
  return null;
}

function parse(file: string, text: string): Program {
  const { program, errors } = parseSync(file, text);
  assert.deepEqual(errors, [], file);
  return program;
}

function lineOf(text: string, node: Span): number {
  return text.slice(0, node.start).split('\n').length;
}

/** Lines that begin with a mark of git, escaped or not, or with its end as seven quotes: a formatter of Markdown makes these. */
function conflictMarks(text: string): { readonly line: number; readonly mark: string }[] {
  const isMark = /^\s*(?:\\?(?:<{7}|>{7}|\|{7})(?:\s|$)|\\?={7}\s*$|(?:> ){7})/;
  return text.split('\n').flatMap((line, i) => (isMark.test(line) ? [{ line: i + 1, mark: line.trim() }] : []));
}

function roomOf(file: string): string {
  return file.slice(0, file.indexOf('/'));
}

function textOf(file: string): string {
  return readFileSync(path.join(root, file), 'utf8');
}

/** The names in the first column of the first table: `core/` is core. */
function roomsOfFirstTable(markdown: string): string[] {
  const lines = markdown.split('\n');
  const first = lines.findIndex((line) => line.startsWith('|'));
  const rest = lines.slice(first);
  const last = rest.findIndex((line) => !line.startsWith('|'));
  const cells = rest.slice(0, last < 0 ? rest.length : last).map((line) => line.split('|')[1] ?? '');
  return cells.flatMap((cell) => [...cell.matchAll(/`([a-z]+)\/?`/g)].map(([, name]) => name!));
}

/** Files that git tracks; in a copy without git, everything but what is made. */
function listFiles(): string[] {
  const made = new Set(['node_modules', 'dist', 'outputs', '.ratchet', '.git']);
  try {
    const listed = execFileSync('git', ['ls-files', '-z'], {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    });
    return listed.split('\0').filter((file) => file !== '' && existsSync(path.join(root, file)));
  } catch {
    return readdirSync(root, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => path.relative(root, path.join(entry.parentPath, entry.name)).split(path.sep).join('/'))
      .filter((file) => !file.split('/').some((part) => made.has(part)));
  }
}
