import { open } from 'node:fs/promises';

/** Lines of a file that another process appends to, as they come. A line that is not whole yet waits. */
export class GrowingFile {
  readonly #file: string;
  #at = 0;
  #rest = '';

  constructor(file: string) {
    this.#file = file;
  }

  /** Whole lines since the last call; none where the file is not there yet. Read as Latin-1: what is looked for is ASCII. */
  async lines(): Promise<string[]> {
    const handle = await open(this.#file, 'r').catch((error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return null;
      throw error;
    });
    if (handle === null) return [];
    const found: string[] = [];
    try {
      const buffer = Buffer.allocUnsafe(64 * 1024);
      for (;;) {
        const { bytesRead } = await handle.read(buffer, 0, buffer.length, this.#at);
        if (bytesRead === 0) return found;
        this.#at += bytesRead;
        const lines = (this.#rest + buffer.toString('latin1', 0, bytesRead)).split('\n');
        this.#rest = lines.pop()!;
        found.push(...lines);
      }
    } finally {
      await handle.close();
    }
  }
}
