/** Starts pods of deploy/kubernetes on this machine: each container's command with its environment, asked by its probes. */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { mkdirSync, readdirSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { promisify } from 'node:util';
import { choosePort } from '../../workers/stack/ports.ts';
import {
  commandOf,
  type Container,
  environmentOf,
  manifests,
  type Pod,
  type Probe,
  settings,
} from '../docs/manifests.ts';
import { repositoryFolder } from './small-run.ts';
import { eventually } from '../workers/fixtures/processes.ts';

/** Names by which pods find each other. */
const services = new Set(manifests().flatMap(({ kind, name }) => (kind === 'Service' ? [name] : [])));
/** Folders of the image that are volumes: they are not in it. */
const volumesOfImage = new Set(['outputs', 'keys', '.ratchet', '.git']);
/** vLLM needs a GPU, and an image of its own. */
const isHere = ({ image }: Container): boolean => image !== 'ratchet-vllm';

interface Cluster {
  /** A folder of the test's own. */
  readonly folder: string;
  readonly temporal: string;
  /** Files of Secrets, by the name of the volume. */
  readonly secrets: Readonly<Record<string, Readonly<Record<string, string>>>>;
  /** Ports of pods that are elsewhere in the cluster, as they are here; Services with their names are the loopback. */
  readonly ports?: Readonly<Record<string, string>>;
}

interface Started {
  readonly container: Container;
  readonly child: ChildProcess;
  readonly said: () => string;
}

/** A pod whose containers are processes here. Each path and port of its own is another one, as in a network and a file system of its own. */
export class RunningPod {
  readonly name: string;
  readonly #pod: Pod;
  readonly #places: readonly (readonly [string, string])[];
  readonly #ports = new Map<string, string>();
  readonly #cluster: Cluster;
  readonly #started: Started[] = [];
  readonly #root: string;

  private constructor(pod: Pod, cluster: Cluster) {
    this.name = pod.name;
    this.#pod = pod;
    this.#cluster = cluster;
    this.#root = path.join(cluster.folder, pod.name);
    const image = path.join(this.#root, 'ratchet');
    mkdirSync(image, { recursive: true });
    for (const entry of readdirSync(repositoryFolder).filter((name) => !volumesOfImage.has(name)))
      symlinkSync(path.join(repositoryFolder, entry), path.join(image, entry));
    const mounts = new Map(pod.containers.flatMap((one) => one.volumeMounts.map((it) => [it.mountPath, it.name])));
    // The longest first: a volume may be in another.
    this.#places = [...mounts]
      .toSorted(([a], [b]) => b.length - a.length)
      .map(([mountPath, volume]) => [mountPath, this.#mount(mountPath, volume)] as const);
  }

  /** Starts the containers in order, each when the sidecars before it have started. */
  static async start(t: TestContext, pod: Pod, cluster: Cluster): Promise<RunningPod> {
    const running = new RunningPod(pod, cluster);
    t.after(() => {
      for (const { child } of running.#started) child.kill('SIGKILL');
    });
    for (const port of pod.containers.flatMap((one) => portsOf(one)))
      if (!running.#ports.has(port)) running.#ports.set(port, String(await choosePort(0)));
    for (const [inside, outside] of Object.entries(cluster.ports ?? {})) running.#ports.set(inside, outside);
    for (const container of pod.containers.filter(isHere)) {
      running.#start(container);
      if (container.restartPolicy === 'Always') await running.#until(container, container.startupProbe, 'startup');
    }
    return running;
  }

  /** Resolves when every probe of every container has succeeded. */
  async ready(): Promise<void> {
    for (const { container } of this.#started) {
      await this.#until(container, container.startupProbe, 'startup');
      await this.#until(container, container.livenessProbe, 'liveness');
      if (container.readinessProbe) await this.#until(container, container.readinessProbe, 'readiness');
    }
  }

  /** Whether a container is ready at this moment. */
  async isReady(name: string): Promise<boolean> {
    const { container } = this.#started.find((one) => one.container.name === name)!;
    return this.#ask(container, container.readinessProbe!);
  }

  /** Ends the pod as a kubelet does. Returns each container's exit code, or its signal. */
  async end(): Promise<Record<string, number | string>> {
    const codes: Record<string, number | string> = {};
    const isSidecar = ({ container }: Started): boolean => container.restartPolicy === 'Always';
    const begun = performance.now();
    for (const some of [this.#started.filter((one) => !isSidecar(one)), this.#started.filter(isSidecar)]) {
      for (const { child } of some) child.kill('SIGTERM');
      for (const one of some) codes[one.container.name] = await this.ended(one.container.name);
    }
    const took = (performance.now() - begun) / 1000;
    const { terminationGracePeriodSeconds } = this.#pod.spec;
    if (took > terminationGracePeriodSeconds) throw new Error(`${this.name} took ${took} s for its end`);
    return codes;
  }

  /** The exit code of a container when it has ended. */
  async ended(name: string): Promise<number | string> {
    const { child } = this.#started.find(({ container }) => container.name === name)!;
    await eventually(
      `${this.name}/${name} ends`,
      () => child.exitCode !== null || child.signalCode !== null,
      this.#pod.spec.terminationGracePeriodSeconds * 1000,
    );
    return child.exitCode ?? child.signalCode!;
  }

  said(name: string): string {
    return this.#started.find(({ container }) => container.name === name)!.said();
  }

  /** Where a path of its containers is here. */
  place(inside: string): string {
    return this.#here(inside);
  }

  port(inside: number): string {
    return this.#ports.get(String(inside))!;
  }

  /** Runs a command in a container, as `kubectl exec` does. */
  async exec(name: string, command: readonly string[]): Promise<string> {
    const { container } = this.#started.find((one) => one.container.name === name)!;
    const [program, ...args] = command;
    const { stdout } = await promisify(execFile)(program === 'node' ? process.execPath : program!, args, {
      cwd: path.join(this.#root, 'ratchet'),
      env: this.#environment(container),
    });
    return stdout;
  }

  #start(container: Container): void {
    const [program, ...args] = commandOf(container, this.#settings).map((word) => this.#here(word));
    const child = spawn(program === 'node' ? process.execPath : program!, args, {
      cwd: path.join(this.#root, 'ratchet'),
      env: this.#environment(container),
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let said = '';
    for (const stream of [child.stdout, child.stderr])
      stream.on('data', (chunk: Buffer) => (said += chunk.toString('utf8')));
    this.#started.push({ container, child, said: () => said });
  }

  /** Nothing of this machine's environment but what an image has. */
  #environment(container: Container): Record<string, string> {
    const given = environmentOf(container, this.#settings);
    return {
      PATH: process.env['PATH'] ?? '',
      HOME: this.#here('/home/node'),
      TMPDIR: this.#here('/tmp'),
      ...Object.fromEntries(Object.entries(given).map(([name, value]) => [name, this.#here(value)])),
    };
  }

  /** The ConfigMap of a cluster with this Temporal server, and a folder as its store. */
  get #settings(): Record<string, string> {
    return { ...settings(), TEMPORAL_ADDRESS: this.#cluster.temporal, RATCHET_STORE: '/ratchet/outputs' };
  }

  /** A word with the pod's paths and ports replaced by those here. */
  #here(word: string): string {
    let here = services.has(word) ? '127.0.0.1' : word;
    const place = this.#places.find(([inside]) => word === inside || word.startsWith(`${inside}/`));
    if (place) here = place[1] + word.slice(place[0].length);
    for (const [inside, outside] of this.#ports) here = here.replace(new RegExp(`(?<=^|:)${inside}(?=$|/)`), outside);
    return here;
  }

  #mount(mountPath: string, volume: string): string {
    const files = this.#cluster.secrets[volume];
    const folder =
      volume === 'outputs' ? path.join(this.#cluster.folder, 'outputs') : path.join(this.#root, 'volumes', volume);
    mkdirSync(folder, { recursive: true });
    // As the kubelet mounts a Secret: links to a folder that is replaced as a whole, readable by the group.
    for (const [name, text] of Object.entries(files ?? {})) {
      mkdirSync(path.join(folder, '..data'), { recursive: true });
      writeFileSync(path.join(folder, '..data', name), text, { mode: 0o440 });
      symlinkSync(path.join('..data', name), path.join(folder, name));
    }
    if (mountPath.startsWith('/ratchet/')) symlinkSync(folder, path.join(this.#root, mountPath));
    return folder;
  }

  async #until(container: Container, probe: Probe, what: string): Promise<void> {
    const { child, said } = this.#started.find((one) => one.container === container)!;
    const where = `${this.name}/${container.name}`;
    await eventually(
      `the ${what} probe of ${where} succeeds`,
      async () => {
        if (child.exitCode !== null || child.signalCode !== null)
          throw new Error(`${where} ended with ${child.exitCode ?? child.signalCode}:\n${said()}`);
        return this.#ask(container, probe);
      },
      120_000,
    );
  }

  async #ask(container: Container, { httpGet, exec }: Probe): Promise<boolean> {
    if (httpGet) {
      const port = container.ports.find(({ name }) => name === httpGet.port)!.containerPort;
      const url = `http://127.0.0.1:${this.#ports.get(String(port))}${httpGet.path}`;
      return fetch(url).then(
        (answer) => answer.status >= 200 && answer.status < 400,
        () => false,
      );
    }
    const command = exec!.command.map((word) =>
      [...this.#ports].reduce((text, [inside, outside]) => text.replace(`:${inside}/`, `:${outside}/`), word),
    );
    return this.exec(container.name, command).then(
      () => true,
      () => false,
    );
  }
}

/** Ports that a container opens, or asks for at its sidecar. */
function portsOf({ ports, command }: Container): string[] {
  const at = command.indexOf('--port');
  return [...ports.map(({ containerPort }) => String(containerPort)), ...(at < 0 ? [] : [command[at + 1]!])];
}
