/** deploy/kubernetes is valid for Kubernetes, keeps its promises, and names what Ratchet has. test/e2e/pods.slow.test.ts starts it. */
import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, realpathSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { parse, parseAllDocuments } from 'yaml';
import { z } from 'zod';
import { exposedMetrics } from '../../backends/metrics/exposition.ts';
import { graceSecondsDefault } from '../../cli/typed/read-grace.ts';
import { workerRoles, type WorkerRole } from '../../core/names.ts';
import { repositoryFolder } from '../e2e/small-run.ts';
import { commandOf, environmentOf, kubernetesFolder, kustomizations, manifests, pods, settings } from './manifests.ts';
import { definitionOf } from './metric-page.ts';

const { kinds, $defs } = JSON.parse(
  readFileSync(path.join(repositoryFolder, 'test/data/kubernetes/schemas-1.33.json'), 'utf8'),
) as { kinds: Record<string, object>; $defs: object };

const text = z.string().min(1);
const metadata = z.strictObject({ name: text, labels: z.record(text, text).optional() });
const labelled = z.strictObject({ matchLabels: z.record(text, text) });
const Rules = z.strictObject({
  groups: z.array(
    z.strictObject({
      name: text,
      rules: z.array(
        z.strictObject({
          alert: text.regex(/^[A-Z]\w+$/),
          expr: text,
          for: text.regex(/^\d+[smh]$/).optional(),
          labels: z.strictObject({ severity: z.enum(['info', 'warning', 'critical']) }),
          annotations: z.strictObject({ summary: text, description: text }),
        }),
      ),
    }),
  ),
});

/** The parts that are used of kinds that operators add to a cluster. */
const added: Readonly<Record<string, z.ZodType>> = {
  PrometheusRule: z.strictObject({
    apiVersion: z.literal('monitoring.coreos.com/v1'),
    kind: z.literal('PrometheusRule'),
    metadata,
    spec: Rules,
  }),
  ServiceMonitor: z.strictObject({
    apiVersion: z.literal('monitoring.coreos.com/v1'),
    kind: z.literal('ServiceMonitor'),
    metadata,
    spec: z.strictObject({
      selector: labelled,
      endpoints: z.array(
        z.strictObject({
          port: text,
          path: text,
          interval: text,
          authorization: z.strictObject({ type: text, credentials: z.strictObject({ name: text, key: text }) }),
        }),
      ),
    }),
  }),
  ScaledObject: z.strictObject({
    apiVersion: z.literal('keda.sh/v1alpha1'),
    kind: z.literal('ScaledObject'),
    metadata,
    spec: z.strictObject({
      scaleTargetRef: z.strictObject({ name: text }),
      minReplicaCount: z.int().min(0),
      maxReplicaCount: z.int().positive(),
      pollingInterval: z.int().positive(),
      cooldownPeriod: z.int().positive(),
      fallback: z.strictObject({
        failureThreshold: z.int(),
        replicas: z.int(),
        behavior: z.enum(['static', 'currentReplicas', 'currentReplicasIfHigher', 'currentReplicasIfLower']),
      }),
      advanced: z.strictObject({
        horizontalPodAutoscalerConfig: z.strictObject({
          behavior: z.strictObject({ scaleDown: z.strictObject({ stabilizationWindowSeconds: z.int().max(3600) }) }),
        }),
      }),
      triggers: z.array(
        z.strictObject({
          type: z.literal('prometheus'),
          metadata: z.strictObject({ serverAddress: z.url(), query: text, threshold: text, ignoreNullValues: text }),
        }),
      ),
    }),
  }),
};

function problemsOf(kind: string, object: unknown): string[] {
  const own = kinds[kind];
  const schema = own === undefined ? added[kind] : z.fromJSONSchema({ ...own, $defs } as never);
  if (schema === undefined) return [`there is no schema of the kind ${kind}`];
  const { error } = schema.safeParse(object);
  return (error?.issues ?? []).flatMap((issue) => problemsIn(issue, []));
}

/** An object that may also be null is a union of two: what is wrong with the object is inside. */
function problemsIn(issue: z.core.$ZodIssue, above: readonly PropertyKey[]): string[] {
  const place = [...above, ...issue.path];
  const inner = issue.code === 'invalid_union' ? issue.errors.flat() : [];
  if (inner.length === 0) return [`${place.join('.')}: ${issue.message}`];
  return inner.flatMap((one) => problemsIn(one, place));
}

test('every object is valid for Kubernetes 1.33, or for the operator whose kind it is', () => {
  const all = manifests();
  for (const { file, kind, name, object } of all) assert.deepEqual(problemsOf(kind, object), [], `${file}: ${name}`);
  assert.ok(all.length > 20);
});

test('a setting that Kubernetes does not have, one of another type and a missing one are noticed', () => {
  const spoiled = (spoil: (object: Spoiled) => unknown): string[] => {
    const { object } = manifests().find(({ name, kind }) => name === 'ratchet-rollout' && kind === 'Deployment')!;
    spoil(object as Spoiled);
    return problemsOf('Deployment', object);
  };
  assert.deepEqual(
    spoiled(() => undefined),
    [],
  );
  assert.match(spoiled(({ spec }) => (spec.template.spec['terminationGraceSeconds'] = 5)).join(), /terminationGrace/);
  assert.match(spoiled(({ spec }) => (spec['replicas'] = 'two')).join(), /spec\.replicas/);
  assert.match(spoiled(({ spec }) => delete spec['selector']).join(), /spec\.selector/);
});
interface Spoiled {
  readonly spec: Record<string, unknown> & { readonly template: { readonly spec: Record<string, unknown> } };
}

test('kustomize is told of every file, and of no other', () => {
  for (const [folder, { resources = [], components = [], configMapGenerator = [] }] of kustomizations()) {
    const envs = configMapGenerator.flatMap((one) => one.envs ?? []);
    for (const named of [...resources, ...components, ...envs])
      assert.ok(existsSync(path.join(folder, named)), `${folder}: ${named}`);
    const here = manifests().filter(({ file }) => path.dirname(path.join(kubernetesFolder, file)) === folder);
    for (const { file } of here) assert.ok(resources.includes(path.basename(file)), file);
  }
});

test('kustomize itself puts the example together', { skip: kustomizeHere() === null }, () => {
  const [program, ...args] = kustomizeHere()!;
  const { status, stderr, stdout } = spawnSync(program!, [...args, path.join(kubernetesFolder, 'example')], {
    encoding: 'utf8',
  });
  assert.equal(status, 0, stderr);
  const scaled = parseAllDocuments(stdout).map((one) => one.toJS() as { metadata: { name: string }; spec?: object });
  for (const { metadata: named, spec } of scaled)
    if (['ratchet-rollout', 'ratchet-train'].includes(named.name)) assert.ok(!('replicas' in spec!), named.name);
  assert.match(stdout, /image: images\.example\.com\/ratchet-torch:/);
});

test('each component is valid on the base as kustomize puts it there', { skip: kustomizeHere() === null }, (t) => {
  const [program, ...args] = kustomizeHere()!;
  const folder = realpathSync(mkdtempSync(path.join(tmpdir(), 'ratchet-kustomize-')));
  t.after(() => rmSync(folder, { recursive: true }));
  const at = (name: string): string => JSON.stringify(path.relative(folder, path.join(kubernetesFolder, name)));
  const built = new Map<string, Built[]>();
  for (const name of readdirSync(path.join(kubernetesFolder, 'components'))) {
    const text = `resources: [${at('base')}]\ncomponents: [${at(`components/${name}`)}]\n`;
    writeFileSync(path.join(folder, 'kustomization.yaml'), text);
    const { status, stderr, stdout } = spawnSync(program!, [...args, folder], { encoding: 'utf8' });
    assert.equal(status, 0, `${name}: ${stderr}`);
    built.set(name, parseAllDocuments(stdout).map((one) => one.toJS() as Built)); // prettier-ignore
    for (const object of built.get(name)!)
      assert.deepEqual(problemsOf(object.kind, object), [], `${name}: ${object.kind} ${object.metadata.name}`);
  }
  const first = built.get('trainer-nodes')!.find(({ kind, metadata: { name } }) => kind === 'Deployment' && name === 'ratchet-train')!; // prettier-ignore
  const { containers, volumes } = first.spec!.template!.spec;
  assert.deepEqual(containers[0]!.ports.map(({ name }) => name).toSorted(), ['health', 'nodes']);
  assert.deepEqual(volumes.filter(({ name }) => name === 'keys').map((one) => Object.keys(one).toSorted()), [['name', 'projected']]); // prettier-ignore
});
interface Built {
  readonly kind: string;
  readonly metadata: { readonly name: string };
  readonly spec?: {
    readonly template?: {
      readonly spec: {
        readonly containers: readonly { readonly ports: readonly { readonly name: string }[] }[];
        readonly volumes: readonly { readonly name: string }[];
      };
    };
  };
}

function kustomizeHere(): string[] | null {
  const known = [
    ['kustomize', 'build'],
    ['kubectl', 'kustomize'],
  ];
  return (
    known.find(([program]) => {
      try {
        execFileSync(program!, ['version'], { stdio: 'ignore' });
        return true;
      } catch (error) {
        return (error as NodeJS.ErrnoException).code !== 'ENOENT';
      }
    }) ?? null
  );
}

test('every role has its pods', () => {
  const roles = pods().flatMap(({ containers }) =>
    containers.flatMap(({ command }) => (command.includes('--role') ? [command[command.indexOf('--role') + 1]!] : [])),
  );
  assert.deepEqual(roles.sort(), [...workerRoles, 'metrics', 'trainer-node'].sort());
  const programs = pods().flatMap(({ containers }) => containers.map(({ command }) => command.slice(0, 3).join(' ')));
  assert.ok(programs.includes('node workers/program.mjs policy-server'));
  assert.ok(programs.includes('node cli/ratchet.mjs ui'));
  for (const program of programs.filter((one) => one.startsWith('node ')))
    assert.ok(existsSync(path.join(repositoryFolder, program.split(' ')[1]!)), program);
});

test('no pod is root, writes to its image, gains a right, or has a token of the cluster', () => {
  for (const { name, spec, containers } of pods()) {
    assert.equal(spec.automountServiceAccountToken, false, name);
    assert.equal(spec.serviceAccountName, 'ratchet', name);
    assert.equal(spec.securityContext['runAsNonRoot'], true, name);
    assert.deepEqual(spec.securityContext['seccompProfile'], { type: 'RuntimeDefault' }, name);
    for (const container of containers) {
      const where = `${name}/${container.name}`;
      const { securityContext, volumeMounts } = container;
      assert.deepEqual(
        securityContext,
        { allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: ['ALL'] } },
        where,
      );
      const volumes = spec.volumes.map((one) => one.name);
      for (const mount of volumeMounts) assert.ok(volumes.includes(mount.name), `${where}: ${mount.name}`);
      const written = volumeMounts.filter(({ readOnly }) => !readOnly).map(({ mountPath }) => mountPath);
      for (const folder of ['/tmp', '/var/cache/ratchet']) assert.ok(written.includes(folder), `${where}: ${folder}`);
    }
    const secret = spec.volumes.filter((one) => 'secret' in one).map((one) => one.name);
    for (const { volumeMounts } of containers)
      for (const mount of volumeMounts) assert.equal(mount.readOnly ?? false, secret.includes(mount.name), mount.name);
  }
});

test('secrets are files: no environment has one, and each variable is one that a program reads', () => {
  const sources = ['cli', 'workers', 'host', 'store', 'core', 'engine', 'backends']
    .flatMap((room) =>
      readdirSync(path.join(repositoryFolder, room), { recursive: true, encoding: 'utf8' })
        .filter((file) => /\.(?:ts|mjs)$/.test(file))
        .map((file) => readFileSync(path.join(repositoryFolder, room, file), 'utf8')),
    )
    .join('\n');
  // what commands of the manifests name themselves
  const ofManifests = ['RATCHET_STORE'];
  const example = [...kustomizations().values()].flatMap(({ configMapGenerator = [] }) =>
    configMapGenerator.flatMap(({ literals = [] }) => literals.map((line) => line.split('=', 1)[0]!)),
  );
  const names = new Set([
    ...Object.keys(settings()),
    ...example,
    ...pods().flatMap(({ containers }) => containers.flatMap((one) => Object.keys(environmentOf(one)))),
  ]);
  for (const name of names) {
    const isPlace = /_(?:FILE|PATH|FOLDER)$/.test(name);
    assert.ok(isPlace || !/KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL/.test(name), name);
    if (/^(?:RATCHET|TEMPORAL)_/.test(name) && !ofManifests.includes(name))
      assert.match(sources, new RegExp(`['\`]${name}\\b`), name);
  }
  for (const { containers } of pods())
    for (const container of containers)
      assert.doesNotMatch(commandOf(container).join(' '), /\$\(\w+\)/, container.name);
});

test('each container is asked whether it lives and whether it is ready, at a port that it has', () => {
  for (const { name, containers } of pods()) {
    for (const container of containers) {
      const { startupProbe, livenessProbe, readinessProbe, ports } = container;
      // The weights of a sidecar come from the worker beside it: it is ready when it is there.
      assert.equal(readinessProbe === undefined, container.restartPolicy === 'Always', `${name}/${container.name}`);
      for (const probe of [startupProbe, livenessProbe, ...(readinessProbe ? [readinessProbe] : [])]) {
        assert.ok(probe.httpGet !== undefined || probe.exec !== undefined);
        if (probe.httpGet) assert.ok(ports.some((port) => port.name === probe.httpGet!.port));
      }
    }
  }
});

test('a pod has more time for its end than its worker takes', () => {
  for (const { name, spec, containers } of pods()) {
    for (const { command } of containers.filter((one) => one.command.includes('--role'))) {
      const valueOf = (option: string): string | undefined =>
        command.includes(option) ? command[command.indexOf(option) + 1] : undefined;
      const role = valueOf('--role')! as WorkerRole;
      const grace = Number(valueOf('--grace') ?? graceSecondsDefault[role] ?? 0);
      assert.ok(spec.terminationGracePeriodSeconds >= grace + 8, `${name}: ${grace}`);
    }
  }
});

test('what several pods do is kept from being evicted at once, and selectors find their pods', () => {
  const all = manifests();
  const selectors = (kind: string): unknown[] =>
    all.flatMap((one) => (one.kind === kind ? [(one.object as { spec: { selector: unknown } }).spec.selector] : []));
  const budgets = selectors('PodDisruptionBudget') as { matchLabels: unknown }[];
  for (const { name, labels, selector, containers } of pods()) {
    assert.deepEqual(selector, labels, name);
    const isOne = containers.some(({ command }) => command.includes('metrics') || command.includes('ui'));
    const has = budgets.some(({ matchLabels }) => JSON.stringify(matchLabels) === JSON.stringify(labels));
    assert.equal(has, !isOne, name);
  }
  const known = pods().map(({ labels }) => JSON.stringify(labels));
  for (const selector of selectors('Service')) assert.ok(known.includes(JSON.stringify(selector)));
});

test('nothing reaches a pod, and a pod reaches nothing, but by policies that name ports which are there', () => {
  interface Policy {
    podSelector: { matchLabels: Record<string, string> };
    policyTypes: string[];
    ingress?: { ports?: { port: number }[]; from?: unknown[] }[];
    egress?: unknown[];
  }
  const policies = manifests().flatMap(({ kind, name, object }) =>
    kind === 'NetworkPolicy' ? [{ name, ...(object as { spec: Policy }).spec }] : [],
  );
  const deny = policies.find(({ name }) => name === 'ratchet-deny')!;
  assert.deepEqual(
    [deny.policyTypes, deny.ingress, deny.egress, deny.podSelector],
    [['Ingress', 'Egress'], undefined, undefined, { matchLabels: { 'app.kubernetes.io/name': 'ratchet' } }],
  );
  for (const { labels } of pods()) assert.equal(labels['app.kubernetes.io/name'], 'ratchet');
  for (const { name, ingress = [], podSelector } of policies.filter((one) => one !== deny)) {
    const component = podSelector.matchLabels['app.kubernetes.io/component'];
    const own = pods().find(({ labels }) => labels['app.kubernetes.io/component'] === component);
    for (const { ports, from } of ingress) {
      assert.ok(from !== undefined && from.length > 0, `${name} says from where`);
      const open = own?.containers.flatMap((one) => one.ports.map(({ containerPort }) => containerPort)) ?? [];
      for (const { port } of ports ?? []) assert.ok(open.includes(port), `${name}: ${port}`);
      // Ranks of one trainer choose their ports; nobody else may ask at any.
      const isOfRanks = name === 'ratchet-train-nodes' && JSON.stringify(from) === JSON.stringify([{ podSelector }]);
      assert.ok(ports !== undefined || isOfRanks, `${name} says at which ports`);
    }
  }
});

test('the example names images, objects and settings that the base has', () => {
  const example = kustomizations().get(path.join(kubernetesFolder, 'example'))!;
  const images = new Set(pods().flatMap(({ containers }) => containers.map(({ image }) => image)));
  assert.deepEqual(example.images!.map(({ name }) => name).sort(), [...images].sort());
  for (const { patch } of example.patches!) {
    const { kind, metadata: named } = parse(patch) as { kind: string; metadata: { name: string } };
    assert.ok(manifests().some((one) => one.kind === kind && one.name === named.name));
  }
  const dockerfile = readFileSync(path.join(repositoryFolder, 'deploy/Dockerfile'), 'utf8');
  for (const image of images) assert.match(dockerfile, new RegExp(`^FROM \\S+ AS ${image}$`, 'm'), image);
});

const rules = Rules.parse(
  parse(readFileSync(path.join(repositoryFolder, 'deploy/prometheus/ratchet.rules.yaml'), 'utf8')),
);

test('the alerts of the cluster are those of deploy/prometheus', () => {
  const { object } = manifests().find(({ kind }) => kind === 'PrometheusRule')!;
  assert.deepEqual((object as { spec: unknown }).spec, rules);
});

test('alerts and autoscalers ask for metrics that are served, by labels that they have', () => {
  const scaled = manifests().flatMap(({ kind, object }) =>
    kind === 'ScaledObject'
      ? (object as { spec: { triggers: { metadata: { query: string } }[] } }).spec.triggers.map(
          (one) => one.metadata.query,
        )
      : [],
  );
  const expressions = [...rules.groups.flatMap((group) => group.rules.map(({ expr }) => expr)), ...scaled];
  for (const expr of expressions) {
    const asked = [...expr.matchAll(/\bratchet_\w+/g)].map(([name]) => name);
    assert.ok(asked.length > 0, expr);
    for (const metric of asked) assert.ok(metric in exposedMetrics, `${metric} in ${expr}`);
    for (const [, name] of expr.matchAll(/ratchet_figure\{name="([^"]+)"\}/g)) assert.ok(definitionOf(name!, []), name);
  }
  for (const { metadata: target, spec } of manifests()
    .filter(({ kind }) => kind === 'ScaledObject')
    .map(({ object }) => object as { metadata: { name: string }; spec: { scaleTargetRef: { name: string } } })) {
    assert.ok(pods().some(({ name }) => name === spec.scaleTargetRef.name));
    assert.equal(target.name, spec.scaleTargetRef.name);
  }
});
