/* A client of the benchmark of Cutovers that resolves as its C library does (glibc and musl).

   Usage: client PORT PAUSE NAME...

   Every PAUSE milliseconds it asks the next NAME: it resolves the name, opens a connection to the first address that takes one,
   sends a line and reads a line. When its input ends, it prints the numbers of requests and of those that failed. */
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* For a connection and for an answer, in seconds: a machine that stands still for a while fails nothing. */
enum { PATIENCE = 25 };

/* Whether a line came back. */
static int answered(int connection)
{
    char byte;
    if (send(connection, "?\n", 2, MSG_NOSIGNAL) != 2)
        return 0;
    do {
        if (recv(connection, &byte, 1, 0) != 1)
            return 0;
    } while (byte != '\n');
    return 1;
}

/* NULL, or what went wrong. */
static const char *ask(const char *name, const char *port)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *addresses, *address;
    struct timeval patience = {.tv_sec = PATIENCE};
    const char *wrong = "no address takes a connection";
    int status = getaddrinfo(name, port, &hints, &addresses);
    if (status != 0)
        return gai_strerror(status);
    for (address = addresses; address != NULL; address = address->ai_next) {
        int connection = socket(address->ai_family, address->ai_socktype, address->ai_protocol);
        if (connection < 0)
            continue;
        setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (connect(connection, address->ai_addr, address->ai_addrlen) == 0) {
            wrong = answered(connection) ? NULL : "no answer";
            close(connection);
            break;
        }
        close(connection);
    }
    freeaddrinfo(addresses);
    return wrong;
}

int main(int count, char **arguments)
{
    unsigned long requests = 0, failed = 0;
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    int next = 3;
    if (count < 4)
        return 2;
    while (poll(&input, 1, atoi(arguments[2])) == 0) {
        const char *wrong = ask(arguments[next], arguments[1]);
        requests++;
        if (wrong != NULL) {
            failed++;
            fprintf(stderr, "%s: %s\n", arguments[next], wrong);
        }
        if (++next == count)
            next = 3;
    }
    printf("%lu %lu\n", requests, failed);
    return 0;
}
