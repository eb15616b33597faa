import { existsSync, mkdirSync } from 'node:fs';
import { readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { z } from 'zod';
import { RatchetError } from '../../core/errors.ts';
import type { GroupParts, NodeGroup, NodeOptions } from '../nodes/trainer-node.ts';
import type { HeldNodes } from '../nodes/nodes.ts';
import { sha256OfFile } from '../../store/file-store.ts';
import { trustedPrimeRlPython } from './find-python.ts';
import { nodeFolder, requireOrphansEnded } from './place.ts';
import { installationOf, profileOf } from './profiles.ts';
import { Launch, settingsFileOf, tailOf, Torchrun } from './torchrun.ts';

/**
 * Ranks of prime-rl’s trainer on a node that is not the first. They exchange batches, weights and checkpoints as files, so all nodes share the
 * folder of a start: each one sees a file of the first, and the first sees one of each, before any rank is started.
 */

/** Finds the Python of prime-rl, and ends what a dead process of this kind left. Throws where that installation cannot be driven. */
export async function openPrimeRlNode(program: string | null, projectFolder: string): Promise<NodeOptions['open']> {
  const python = await trustedPrimeRlPython(program, projectFolder);
  profileOf(await installationOf(python), python);
  await requireOrphansEnded();
  return (parts) => new PrimeRlNodeGroup(python, parts);
}

/** Order to a node: what torchrun is started with, and how the shared folder is known. */
const Order = Launch.required({ nodes: true }).extend({
  /** sha256 of the settings file, which the first node has written. */
  settings: z.string(),
});

/** A shared disk may show new files late: NFS remembers for up to a minute that a name was not there. */
const seeingMs = 75_000;
const lookMs = 250;

class PrimeRlNodeGroup implements NodeGroup {
  readonly #python: string;
  readonly #parts: GroupParts;
  readonly #started: Promise<void>;
  #torchrun: Torchrun | null = null;
  #isStopped = false;

  constructor(python: string, parts: GroupParts) {
    this.#python = python;
    this.#parts = parts;
    this.#started = this.#start().catch((error: unknown) => {
      const { code = 'EngineDied', message } = error as { readonly code?: string; readonly message: string };
      parts.tellEnd({ code, message });
    });
  }

  async #start(): Promise<void> {
    const { order, group, say, tellEnd } = this.#parts;
    const launch = Order.parse(order);
    await this.#see(launch.folder, launch.settings);
    if (this.#isStopped) return;
    const cwd = nodeFolder(launch.folder, launch.nodes.index);
    mkdirSync(cwd);
    const log = path.join(launch.folder, `node-${launch.nodes.index}.log`);
    await writeFile(seenFile(launch.folder, launch.nodes.index), group);
    if (this.#isStopped) return;
    this.#torchrun = new Torchrun(this.#python, launch, {
      cwd,
      log,
      networkInterface: this.#parts.interface,
      onEnd: (how, isDone) => {
        if (!isDone)
          void tailOf(log).then((tail) =>
            tellEnd({ code: 'EngineDied', message: `prime-rl’s trainer ${how} there.${tail}` }),
          );
      },
    });
    say(`${launch.ranks} ranks of group ${group.slice(0, 8)}`);
  }

  async #see(folder: string, sha256: string): Promise<void> {
    const file = settingsFileOf(folder);
    const deadline = performance.now() + seeingMs;
    while (!this.#isStopped) {
      if (existsSync(file) && (await sha256OfFile(file)) === sha256) return;
      if (performance.now() > deadline) throw notShared(`this node does not see ${file} as the first one wrote it`);
      await delay(lookMs);
    }
  }

  /** Tries until its ranks are gone: the node is not free before. */
  async stop(): Promise<void> {
    this.#isStopped = true;
    await this.#started;
    for (;;) {
      try {
        return await this.#torchrun?.end();
      } catch (error) {
        this.#parts.say((error as Error).message);
      }
    }
  }
}

/** The first node’s look: each of the others has written into the folder. Throws with the names of those that have not. */
export async function requireShared(folder: string, held: HeldNodes, hasEnded: () => boolean): Promise<void> {
  const deadline = performance.now() + 2 * seeingMs; // they look first, and say more when they see nothing
  const isSeen = async (node: number): Promise<boolean> =>
    (await readFile(seenFile(folder, node), 'utf8').catch(() => '')) === held.group;
  for (;;) {
    const seen = await Promise.all(held.names.map((_, i) => isSeen(i + 1)));
    if (seen.every(Boolean) || hasEnded()) return;
    if (performance.now() > deadline) {
      const silent = held.names.filter((_, i) => !seen[i]);
      throw notShared(`nothing that ${silent.join(' and ')} wrote into ${folder} is seen on the first node`);
    }
    await delay(lookMs);
  }
}

function seenFile(folder: string, node: number): string {
  return path.join(folder, `node-${node}.seen`);
}

function notShared(why: string): RatchetError {
  return new RatchetError(
    'ConfigInvalid',
    `${why}. Nodes of prime-rl’s trainer exchange batches, weights and checkpoints as files: expected one shared disk at the same path on all of them. Mount it, and name a folder there by RATCHET_PENDING where the GPU worker of the run is started.`,
  );
}
