/** Output of a command, of which the beginning and the end are kept. */
export class KeptOutput {
  readonly #halfBytes: number;
  readonly #beginning: Buffer[] = [];
  readonly #end: Buffer[] = [];
  #beginningBytes = 0;
  #endBytes = 0;
  #leftOutBytes = 0;

  constructor(bytesMax: number) {
    this.#halfBytes = Math.floor(bytesMax / 2);
  }

  get isCut(): boolean {
    return this.#leftOutBytes > 0;
  }

  add(bytes: Buffer): void {
    const first = bytes.subarray(0, this.#halfBytes - this.#beginningBytes);
    if (first.length > 0) this.#beginning.push(Buffer.from(first));
    this.#beginningBytes += first.length;
    const rest = bytes.subarray(first.length);
    if (rest.length === 0) return;
    this.#end.push(Buffer.from(rest));
    this.#endBytes += rest.length;
    while (this.#endBytes > this.#halfBytes) this.#leaveOut(this.#endBytes - this.#halfBytes);
  }

  text(): string {
    const beginning = Buffer.concat(this.#beginning);
    const end = Buffer.concat(this.#end);
    if (!this.isCut) return Buffer.concat([beginning, end]).toString();
    return `${beginning.toString()}\n… (${this.#leftOutBytes} bytes left out) …\n${end.toString()}`;
  }

  #leaveOut(bytes: number): void {
    const oldest = this.#end[0]!;
    const gone = Math.min(bytes, oldest.length);
    if (gone === oldest.length) this.#end.shift();
    else this.#end[0] = oldest.subarray(gone);
    this.#endBytes -= gone;
    this.#leftOutBytes += gone;
  }
}
