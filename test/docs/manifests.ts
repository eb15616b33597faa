/** Reads deploy/kubernetes as the tests need it: its objects, and its pods with what each container is started with. */
import { readdirSync, readFileSync, statSync } from 'node:fs';
import path from 'node:path';
import { parse, parseAllDocuments } from 'yaml';
import { z } from 'zod';
import { repositoryFolder } from '../e2e/small-run.ts';

export const kubernetesFolder = path.join(repositoryFolder, 'deploy/kubernetes');

/** An object of the API, with the file that it is in. */
export interface Manifest {
  readonly file: string;
  readonly kind: string;
  readonly name: string;
  readonly object: unknown;
}

/** All files of YAML but kustomize's own. */
export function manifests(): Manifest[] {
  return yamlFiles(kubernetesFolder)
    .filter((file) => path.basename(file) !== 'kustomization.yaml')
    .flatMap((file) =>
      parseAllDocuments(readFileSync(file, 'utf8')).map((document) => {
        if (document.errors.length > 0) throw new Error(`${file}: ${document.errors[0]!.message}`);
        const object = document.toJS() as unknown;
        const { kind, metadata } = Named.parse(object);
        return { file: path.relative(kubernetesFolder, file), kind, name: metadata.name, object };
      }),
    );
}

const Named = z.looseObject({ kind: z.string(), metadata: z.looseObject({ name: z.string() }) });

export function yamlFiles(folder: string): string[] {
  return readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .map((name) => path.join(folder, name))
    .filter((file) => statSync(file).isFile() && file.endsWith('.yaml'))
    .sort();
}

export interface Kustomization {
  readonly resources?: readonly string[];
  readonly components?: readonly string[];
  readonly images?: readonly { readonly name: string }[];
  readonly configMapGenerator?: readonly {
    readonly name: string;
    readonly envs?: readonly string[];
    readonly literals?: readonly string[];
  }[];
  readonly patches?: readonly { readonly patch: string }[];
}

/** Folders with a kustomization.yaml, and what it says. */
export function kustomizations(): Map<string, Kustomization> {
  const files = yamlFiles(kubernetesFolder).filter((file) => path.basename(file) === 'kustomization.yaml');
  return new Map(
    files.map((file) => [path.dirname(file), parse(readFileSync(file, 'utf8')) as Kustomization] as const),
  );
}

const Probe = z.looseObject({
  httpGet: z.looseObject({ path: z.string(), port: z.union([z.string(), z.number()]) }).optional(),
  exec: z.looseObject({ command: z.array(z.string()) }).optional(),
});
export type Probe = z.infer<typeof Probe>;

/** What Kubernetes says of a pod, here. */
const fields: Readonly<Record<string, string>> = {
  'status.podIP': '127.0.0.1',
  "metadata.labels['apps.kubernetes.io/pod-index']": '1',
};

const Container = z.looseObject({
  name: z.string(),
  image: z.string(),
  command: z.array(z.string()),
  restartPolicy: z.string().optional(),
  ports: z.array(z.looseObject({ name: z.string(), containerPort: z.number() })).default([]),
  envFrom: z.array(z.looseObject({ configMapRef: z.looseObject({ name: z.string() }) })).default([]),
  // No secret is in the environment of a pod: only values, and what Kubernetes knows of the pod.
  env: z
    .array(
      z.union([
        z.strictObject({ name: z.string(), value: z.string() }),
        z.strictObject({
          name: z.string(),
          valueFrom: z.strictObject({ fieldRef: z.strictObject({ fieldPath: z.enum(Object.keys(fields)) }) }),
        }),
      ]),
    )
    .default([]),
  startupProbe: Probe,
  livenessProbe: Probe,
  readinessProbe: Probe.optional(),
  resources: z.looseObject({
    requests: z.record(z.string(), z.string()),
    limits: z.record(z.string(), z.string()).optional(),
  }),
  securityContext: z.looseObject({}),
  volumeMounts: z.array(z.looseObject({ name: z.string(), mountPath: z.string(), readOnly: z.boolean().optional() })),
});
export type Container = z.infer<typeof Container>;

const Labels = z.record(z.string(), z.string());
const PodSpec = z.looseObject({
  automountServiceAccountToken: z.boolean(),
  serviceAccountName: z.string(),
  terminationGracePeriodSeconds: z.number(),
  securityContext: z.looseObject({}),
  initContainers: z.array(Container).default([]),
  containers: z.array(Container),
  volumes: z.array(z.looseObject({ name: z.string() })),
  nodeSelector: Labels.optional(),
});
const Workload = z.looseObject({
  metadata: z.looseObject({ name: z.string() }),
  spec: z.looseObject({
    replicas: z.number(),
    selector: z.looseObject({ matchLabels: Labels }),
    template: z.looseObject({ metadata: z.looseObject({ labels: Labels }), spec: PodSpec }),
  }),
});

/** What a Deployment or a StatefulSet starts. */
export interface Pod {
  readonly name: string;
  readonly replicas: number;
  readonly labels: Readonly<Record<string, string>>;
  readonly selector: Readonly<Record<string, string>>;
  readonly spec: z.infer<typeof PodSpec>;
  /** Sidecars first, as Kubernetes starts them. */
  readonly containers: readonly Container[];
}

export function pods(): Pod[] {
  return manifests()
    .filter(({ kind }) => kind === 'Deployment' || kind === 'StatefulSet')
    .map(({ object }) => {
      const { metadata, spec } = Workload.parse(object);
      const { metadata: template, spec: pod } = spec.template;
      return {
        name: metadata.name,
        replicas: spec.replicas,
        labels: template.labels,
        selector: spec.selector.matchLabels,
        spec: pod,
        containers: [...pod.initContainers, ...pod.containers],
      };
    });
}

/** The settings of the ConfigMap `ratchet`. */
export function settings(): Record<string, string> {
  const text = readFileSync(path.join(kubernetesFolder, 'base/settings.env'), 'utf8');
  return Object.fromEntries(text.split('\n').flatMap((line) => (line === '' ? [] : [splitAt(line, '=')])));
}

function splitAt(line: string, mark: string): [string, string] {
  const at = line.indexOf(mark);
  return [line.slice(0, at), line.slice(at + 1)];
}

/** The environment that Kubernetes gives a container. */
export function environmentOf({ envFrom, env }: Container, shared = settings()): Record<string, string> {
  const own = env.map((one) => [one.name, 'value' in one ? one.value : fields[one.valueFrom.fieldRef.fieldPath]!]);
  return { ...(envFrom.length > 0 ? shared : {}), ...(Object.fromEntries(own) as Record<string, string>) };
}

/** The command of a container, with `$(NAME)` of its environment put in, as Kubernetes does. */
export function commandOf(container: Container, shared = settings()): string[] {
  const env = environmentOf(container, shared);
  return container.command.map((word) => word.replaceAll(/\$\((\w+)\)/g, (whole, name: string) => env[name] ?? whole));
}
